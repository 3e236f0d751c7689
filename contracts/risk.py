"""Risk: a pure, monotone grade of one step, to a level and a duty (DESIGN.md section 7).

No model's name, score or confidence is an input. Raising any input never lowers level or duty.
"""

from dataclasses import dataclass, field
from typing import Final

from contracts.keys import digest
from contracts.tool import AnyContract, Duty, SideEffect

LEVELS: Final = ("L0", "L1", "L2", "L3", "L4")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The thresholds; amounts in cents, strictly over; times in seconds."""

    large_cents: dict[str, int] = field(
        default_factory=lambda: {"EUR": 1_000_000, "USD": 1_000_000, "GBP": 1_000_000, "CNY": 1_000_000}
    )
    many_rows: int = 100
    intent_deadline_seconds: int = 86_400
    open_inactivity_seconds: int = 900
    approval_expiry_seconds: int = 86_400
    approval_valid_seconds: int = 3_600
    compensation_attempts_max: int = 10
    compensation_backoff_max_seconds: int = 60
    lock_wait_seconds: int = 30

    @property
    def digest(self) -> str:
        """Identify the policy in plans and audit rows."""
        return digest({name: getattr(self, name) for name in self.__dataclass_fields__})


DEFAULT_POLICY: Final = Policy()


@dataclass(frozen=True, kw_only=True)
class RiskInputs:
    """What is known of a step's size and reach when it is graded.

    `amount_cents` is all that the plan has moved in the currency when this step is done, `rows` all that it has
    touched: splitting changes nothing.
    """

    amount_cents: int = 0
    together: str = ""
    """With what else the amount was summed up, in words."""
    currency: str | None = None
    rows: int = 0
    rows_together: str = ""
    """With what else the rows were counted, in words."""
    crosses_principal: bool = False
    draws_on_tenant: bool = False


@dataclass(frozen=True, kw_only=True)
class Grade:
    """Level 0..4, the duty, and which rules lifted them."""

    level: int
    duty: Duty
    because: tuple[str, ...]


def grade(  # noqa: C901 - one line per rule
    contract: AnyContract, inputs: RiskInputs, policy: Policy = DEFAULT_POLICY
) -> Grade:
    """Take the highest level and duty that any rule asks for."""
    if contract.side_effect is SideEffect.READ_ONLY:
        return Grade(level=0, duty=Duty.NONE, because=("reads only",))
    reserves = contract.confirms is not None
    irreversible = contract.side_effect is SideEffect.IRREVERSIBLE or reserves
    rules: list[tuple[int, Duty, str]] = [(2, contract.duty, "writes")]
    if contract.amount is not None:
        rules.append((3, Duty.NONE, "moves money"))
    if irreversible:
        rules.append((3, Duty.NONE, "cannot be undone once it is confirmed" if reserves else "cannot be undone"))
    if contract.duty is not Duty.NONE:
        rules.append((4, contract.duty, f"the tool's own duty is {contract.duty}"))
    large = inputs.rows > policy.many_rows
    if large:
        together = f"together with {inputs.rows_together} " if inputs.rows_together else ""
        rules.append((4, Duty.ONE, f"{together}more than {policy.many_rows} rows"))
    if contract.amount is not None and inputs.amount_cents > 0:
        threshold = policy.large_cents.get(inputs.currency or "")
        if threshold is None:
            rules.append((4, Duty.TWO, f"no threshold for currency {inputs.currency}"))
        elif inputs.amount_cents > threshold:
            large = True
            together = f"together with {inputs.together} " if inputs.together else ""
            rules.append((4, Duty.ONE, f"{together}more than {threshold} cents {inputs.currency}"))
    if large and irreversible:
        rules.append((4, Duty.TWO, "large and cannot be undone"))
    if inputs.crosses_principal:
        rules.append((4, Duty.ONE, "touches another principal's object"))
    if inputs.draws_on_tenant:
        rules.append((4, Duty.ONE, "draws on what belongs to the tenant"))
    return Grade(
        level=max(level for level, _, _ in rules),
        duty=max((duty for _, duty, _ in rules), key=lambda duty: duty.rank),
        because=tuple(why for _, _, why in rules),
    )

"""Amounts as difference constraints: what is taken from an object that the plan makes is at most what it holds.

For each such object the sum of what steps take minus what its maker put in is at most 0; where a step has to take the
whole, the difference is 0. An amount that is bound is not known yet: it counts as nothing here, and is looked at in the
transaction of its step.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from contracts.objects import Call, Made, Objects, argument, name_of
from contracts.states import Finding, Path
from contracts.tool import AmountUse, AnyContract

Conflict = tuple[Path, str, str]
"""The steps, what is wrong, and what would be right."""


@dataclass
class Account:
    """What goes into an object and what is taken out; cents, None where it is not known before it runs."""

    made: Made
    held: int | None
    currency: str | None
    taken: list[tuple[str, int | None, str | None, bool]] = field(
        default_factory=list[tuple[str, int | None, str | None, bool]]
    )


def conflicts(accounts: Sequence[Account]) -> Iterator[Conflict]:
    """List each constraint that the plan's own amounts break."""
    for account in accounts:
        yield from _broken(account)


def findings(
    accounts: Sequence[Account], steps: Sequence[Call], contracts: Mapping[str, AnyContract], objects: Objects
) -> list[Finding]:
    """Say of each object what is compared, and when; there are no conflicts."""
    found: list[Finding] = []
    for account in accounts:
        if not account.taken:
            continue
        path = (account.made.maker, *(step_id for step_id, *_ in account.taken))
        known = account.held is not None and all(cents is not None for _, cents, _, _ in account.taken)
        parts = " + ".join("?" if cents is None else str(cents) for _, cents, _, _ in account.taken)
        sign = "=" if all(whole for *_, whole in account.taken) else "<="
        held = "?" if account.held is None else str(account.held)
        says = f"{account.made.name}: {parts} {sign} {held} cents"
        found.append((known, path, says if known else f"{says}; compared in the transaction of each taking step"))
    by_source: dict[str, list[str]] = {}
    for step in steps:
        contract = contracts.get(step.tool)
        use = contract.amount if contract is not None else None
        if contract is None or use is None or use.taken_from is None:
            continue
        name = _named(step, contract, use.taken_from)
        if name and name not in objects.made:
            by_source.setdefault(name, []).append(step.step_id)
    for name, takers in by_source.items():
        says = f"{name} has what is taken: summed at admission, and looked at in each one's transaction"
        found.append((False, tuple(takers), says))
    return found


def accounts_of(steps: Sequence[Call], contracts: Mapping[str, AnyContract], objects: Objects) -> list[Account]:
    """Book what goes into each object that the plan makes, and what its steps take out."""
    by_id = {step.step_id: step for step in steps}
    found: dict[str, Account] = {}
    for name, made in objects.made.items():
        if made.declared.amount is not None:
            maker = by_id[made.maker]
            use = contracts[maker.tool].amount
            held, currency = argument(maker, made.declared.amount), _currency(maker, use)
            found[name] = Account(made, held if isinstance(held, int) else None, currency)
    for step in steps if found else ():
        contract = contracts.get(step.tool)
        use = contract.amount if contract is not None else None
        if contract is None or use is None:
            continue
        for source, whole in ((use.taken_from, False), (use.exactly_of, True)):
            account = found.get(_named(step, contract, source))
            if account is not None:
                cents = argument(step, use.argument)
                known = cents if isinstance(cents, int) else None
                account.taken.append((step.step_id, known, _currency(step, use), whole))
    return list(found.values())


def _broken(account: Account) -> Iterator[Conflict]:
    """Compare what is taken with what is held."""
    maker, name, held = account.made.maker, account.made.name, account.held
    for step_id, cents, currency, whole in account.taken:
        if None not in (currency, account.currency) and currency != account.currency:
            says = f"Step {step_id} takes {currency} from {name}, which step {maker} made in {account.currency}."
            yield (maker, step_id), says, f"Say {account.currency} in step {step_id}."
        if whole and None not in (cents, held) and cents != held:
            says = f"Step {step_id} says {cents} cents of {name}, which step {maker} made with {held}."
            yield (maker, step_id), says, f"Say {held} cents in step {step_id}."
    takers = [(step_id, cents) for step_id, cents, _, whole in account.taken if cents is not None and not whole]
    total = sum(cents for _, cents in takers)
    if held is not None and total > held:
        path = tuple(step_id for step_id, _ in takers)
        parts = " + ".join(str(cents) for _, cents in takers)
        subject = f"Step {path[0]} takes" if len(path) == 1 else f"Steps {', '.join(path)} take"
        says = f"{subject} {parts} cents from {name}, which holds {held}: {total - held} too much."
        advice = f"Take at most {held} in all, or make step {maker} hold {total}."
        yield (maker, *path), says, advice


def _named(step: Call, contract: AnyContract, name: str | None) -> str:
    """Name the object that an argument names; empty when it names none."""
    kind = next((use.kind for use in contract.resources if use.argument == name), None)
    return (name_of(step, name, kind) or "") if name is not None else ""


def _currency(step: Call, use: AmountUse | None) -> str | None:
    value = argument(step, use.currency) if use is not None else None
    return value if isinstance(value, str) else None

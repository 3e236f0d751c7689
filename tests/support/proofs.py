"""Plans of made-up tools, for tests of the proof: every kind of step, in any graph."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from contracts.fallback import fallback_id
from contracts.intent import Caller
from contracts.plan import Plan, PlannedStep
from contracts.tool import AnyContract, Dispatch, Idempotency, SideEffect
from tests.support.plans import plan
from tests.unit.sample_contracts import NOTE

ANNA = Caller(tenant="bank", principal="anna", agent="robot")


def tool(
    name: str,
    side_effect: SideEffect = SideEffect.REVERSIBLE,
    *,
    may_refuse: bool = True,
    remote: Idempotency | None = None,
) -> AnyContract:
    """A tool without resources or amounts."""
    return replace(
        NOTE,
        name=name,
        side_effect=side_effect,
        may_refuse=may_refuse,
        compensates_by="It is struck out." if side_effect is SideEffect.REVERSIBLE else None,
        dispatch=Dispatch.DATABASE if remote is None else Dispatch.REMOTE,
        idempotency=remote or Idempotency.NATIVE,
    )


_TOOLS = (
    tool("undo_local_note"),
    tool("undo_sure_note", may_refuse=False),
    tool("read_local_note", SideEffect.READ_ONLY),
    tool("send_local_pivot", SideEffect.IRREVERSIBLE),
    tool("send_sure_final", SideEffect.IRREVERSIBLE, may_refuse=False),
    tool("undo_keyed_remote", remote=Idempotency.HEADER),
    tool("undo_looked_remote", remote=Idempotency.LOOKUP),
    tool("undo_lost_remote", remote=Idempotency.NONE),
    tool("pay_keyed_remote", SideEffect.IRREVERSIBLE, remote=Idempotency.HEADER),
    tool("pay_lost_remote", SideEffect.IRREVERSIBLE, remote=Idempotency.NONE),
    tool("read_remote_rate", SideEffect.READ_ONLY, remote=Idempotency.NONE),
)
CONTRACTS: Mapping[str, AnyContract] = {contract.wire_name: contract for contract in _TOOLS}
LOCAL = tuple(name for name, contract in CONTRACTS.items() if contract.dispatch is Dispatch.DATABASE)


def made(step_id: str, name: str, needs: Sequence[str] = (), resources: Sequence[str] = ()) -> PlannedStep:
    """Plan a step of such a tool as admission would."""
    contract = CONTRACTS[name if "@" in name else f"{name}@1"]
    return PlannedStep(
        step_id=step_id,
        tool=contract.wire_name,
        arguments={},
        needs=tuple(needs),
        dispatch=contract.dispatch,
        side_effect=contract.side_effect,
        may_refuse=contract.may_refuse,
        resources=tuple(resources),
    )


def graph(**steps: str) -> Plan:
    """Plan a graph: `graph(a="undo_local_note or undo_sure_note", b="read_local_note after a")`."""
    found: list[PlannedStep] = []
    for step_id, words in steps.items():
        calls, _, needs = words.partition(" after ")
        name, _, other = calls.partition(" or ")
        found.append(made(step_id, name, needs.split()))
        if other:
            changes = {"stands_for": step_id, "step_id": fallback_id(step_id)}
            found.append(made(step_id, other, needs.split()).model_copy(update=changes))
    return plan(*found)

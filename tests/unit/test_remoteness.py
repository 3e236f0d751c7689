"""What a contract has to say about a write that happens somewhere else."""

from dataclasses import replace
from typing import Any

import pytest

from activities.catalog import PackError, check_packs
from activities.tool import AnyRemoteTool, NotSentError, Pack, RemoteTool
from contracts.lint import check_contract
from contracts.reasons import Reason
from contracts.remoteness import send_within
from contracts.tool import Dispatch, Idempotency, SideEffect, WhenMoved
from tests.support.courier import ASK, PACK, SHIP, bring_back, call_off, look, ship
from tests.unit.sample_contracts import NOTE


def test_the_contracts_of_the_courier_are_right() -> None:
    assert {tool.contract.name: check_contract(tool.contract) for tool in PACK.tools} == {
        tool.contract.name: [] for tool in PACK.tools
    }


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"downstream": ""}, "name the system that it calls in downstream"),
        ({"downstream": "The Courier"}, "name the system that it calls in downstream"),
        ({"in_flight_seconds": 0}, "in_flight_seconds is 0; use at least timeout_seconds (1)"),
        ({"patience_seconds": 0}, "patience_seconds is 0; use at least in_flight_seconds (1)"),
        ({"key_lifetime_seconds": 1}, "a downstream has to know a key for longer than in_flight_seconds (1)"),
        ({"idempotency": Idempotency.LOOKUP}, "idempotency is lookup, which knows no keys"),
        ({"compensations_per_minute": 0}, "compensations_per_minute is 0; use 1 to 10000"),
        (
            {"side_effect": SideEffect.IRREVERSIBLE, "compensates_by": None},
            "is never compensated: take compensations_per_minute away",
        ),
    ],
)
def test_a_remote_contract_that_promises_what_cannot_hold_is_refused(changes: dict[str, Any], told: str) -> None:
    assert any(told in line for line in check_contract(replace(SHIP, **changes)))


@pytest.mark.parametrize(
    ("contract", "kind"),
    [(replace(NOTE, in_flight_seconds=5), "writes in our database"), (replace(ASK, downstream="x"), "writes nothing")],
)
def test_where_no_outcome_is_unknown_nothing_is_said_of_one(contract: Any, kind: str) -> None:  # noqa: ANN401
    assert any(f"it {kind}, where no outcome is unknown" in line for line in check_contract(contract))


def test_a_request_leaves_soon_or_not_at_all() -> None:
    assert [send_within(replace(SHIP, timeout_seconds=seconds)) for seconds in (0.5, 60.0)] == [0.5, 5.0]


@pytest.mark.parametrize(("said", "kept"), [(7, 7), (-1, 0), (1e9, 300), (None, None)])
def test_a_time_to_come_again_is_kept_within_bounds(said: float | None, kept: float | None) -> None:
    error = NotSentError("busy", retry_after_seconds=said)

    assert error.reason is Reason.DEPENDENCY_DOWN
    assert error.info.details == {"retry_after_seconds": kept}


def refusal_of(tool: AnyRemoteTool) -> str:
    with pytest.raises(PackError) as refused:
        check_packs([Pack(name="couriers", tools=(tool,), resources={"book": "select 1"})])
    return str(refused.value)


async def look_too_long(_: object, __: object, ___: object) -> None:
    return None


def _tool(**changes: Any) -> AnyRemoteTool:  # noqa: ANN401 - handlers and contract, right or wrong
    given: dict[str, Any] = {"contract": SHIP, "execute": ship, "lookup": look, "compensate": bring_back, **changes}
    tool: AnyRemoteTool = RemoteTool(**given)
    return tool


def test_the_right_remote_tool_is_accepted() -> None:
    check_packs([Pack(name="couriers", tools=(_tool(),), resources={"book": "select 1"})])


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        (_tool(lookup=look_too_long), "lookup takes 3 arguments; it must take 2"),
        (_tool(cancel_by_key=call_off), "cancel_by_key of the contract and the handler of that name go together"),
        (_tool(contract=replace(SHIP, when_moved=WhenMoved.PARK)), "when_moved is park, and nothing is read back"),
        (
            _tool(contract=replace(SHIP, cancel_by_key=True)),
            "cancel_by_key of the contract and the handler of that name go together",
        ),
        (
            _tool(contract=replace(SHIP, idempotency=Idempotency.LOOKUP, key_lifetime_seconds=0), lookup=None),
            "has idempotency lookup but no lookup handler",
        ),
        (_tool(compensate=None), "is REVERSIBLE but has no compensate handler"),
        (_tool(contract=replace(SHIP, dispatch=Dispatch.DATABASE)), "is a RemoteTool and yet dispatched DATABASE"),
    ],
)
def test_a_remote_tool_that_does_not_fit_its_contract_is_refused(tool: AnyRemoteTool, told: str) -> None:
    assert told in refusal_of(tool)

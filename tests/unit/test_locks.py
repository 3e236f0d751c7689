"""What a plan locks, as data: from contracts and arguments to the locks that a step must hold."""

from dataclasses import replace

import pytest

from activities.packs.ledger import PACK as LEDGER
from activities.packs.records import PACK as RECORDS
from contracts.base import JsonObject
from contracts.errors import SagaError
from contracts.intent import Caller
from contracts.lint import check_contract
from contracts.locks import ASK_AGAIN, Lock, asks_again_after
from contracts.plan import Plan
from contracts.planning import ObjectState, plan_for
from contracts.proposal import propose
from contracts.reasons import Reason
from contracts.registry import Registry
from contracts.risk import Policy
from contracts.tool import LockMode, SideEffect
from tests.support.lockers import ANNA, BORIS, FIND, claim, find, found_by, locking, share

CALLER = Caller(tenant="bank", principal="customer", agent="agent")
BOOKS = (
    locking("claim_sample_book", LockMode.EXCLUSIVE),
    locking("share_sample_book", LockMode.SHARED),
    locking("insist_sample_book", LockMode.SHARED, may_refuse=False),
    FIND,
)
REGISTRY = Registry.of([*BOOKS, *(tool.contract for pack in (LEDGER, RECORDS) for tool in pack.tools)])
EXCLUSIVE, SHARED = LockMode.EXCLUSIVE, LockMode.SHARED


def known(name: str, state: str = "OPEN", within: str | None = None) -> dict[str, ObjectState]:
    own = ObjectState(
        object_id=name.partition(":")[2],
        tenant="bank",
        principal="customer",
        state=state,
        currency=None,
        available_cents=None,
        limit_cents=None,
        within=within,
    )
    return {name: own}


WORLD = {
    **known(f"book:{ANNA}"),
    **known(f"book:{BORIS}"),
    **known("file:F00000001"),
    **known("deletion:D0000000001", "DELETED", within="file:F00000001"),
    **known("account:A00000001", "ACTIVE"),
}


def planned(*steps: JsonObject, policy: Policy | None = None) -> Plan:
    intent: JsonObject = {"protocol": 1, "session_id": "chat", "steps": list(steps)}
    return plan_for(propose(intent, CALLER, REGISTRY), WORLD, policy or Policy())


def freeze() -> JsonObject:
    money = {"amount_cents": 5, "currency": "EUR", "reason_code": "PURCHASE"}
    return {"step_id": "freeze", "tool": "freeze_account_funds", "arguments": {"account_id": "A00000001", **money}}


def test_the_first_step_holds_all_that_the_plan_names_outright_each_in_its_strongest_mode() -> None:
    plan = planned(share("one", BORIS), claim("two", ANNA), share("three", ANNA))

    assert plan.locks_for("one", plan.steps[0].arguments) == (
        Lock(resource=f"book:{ANNA}", mode=EXCLUSIVE, step_ids=("three", "two")),
        Lock(resource=f"book:{BORIS}", mode=SHARED, step_ids=("one",)),
    )


def test_what_is_bound_is_locked_by_its_own_step_under_what_the_binding_came_to() -> None:
    plan = planned(claim("one", ANNA), find("seek", BORIS), share("two", ANNA, other_id=found_by("seek")))
    resolved = {"book_id": ANNA, "other_id": BORIS}

    names = [[lock.resource for lock in plan.locks_for(name, resolved)] for name in ("one", "two")]

    assert names == [[f"book:{ANNA}"], [f"book:{ANNA}", f"book:{BORIS}"]]


def test_whoever_locks_a_part_locks_the_whole() -> None:
    arguments = {"deletion_id": "D0000000001", "reason_code": "LEGAL_ORDER"}
    plan = planned({"step_id": "back", "tool": "restore_customer_records", "arguments": arguments})

    locks = plan.locks_for("back", plan.steps[0].arguments)

    assert [(lock.resource, lock.mode) for lock in locks] == [
        ("deletion:D0000000001", EXCLUSIVE),
        ("file:F00000001", EXCLUSIVE),
    ]


def test_money_is_moved_without_locks_and_an_account_is_locked_with_one() -> None:
    lock = {"account_id": "A00000001", "reason_code": "SUSPECTED_FRAUD"}
    money, account = planned(freeze()), planned({"step_id": "a", "tool": "lock_customer_account", "arguments": lock})

    assert not money.needs_locks
    assert [lock.resource for lock in account.locks_for("a", lock)] == ["account:A00000001"]


def test_what_cannot_refuse_does_not_lock_what_it_has_to_find_first() -> None:
    step = {**share("late", ANNA, other_id=found_by("seek")), "tool": "insist_sample_book"}

    with pytest.raises(SagaError, match="cannot refuse, and binds other_id") as caught:
        planned(find("seek", BORIS), step)

    assert caught.value.reason is Reason.PLAN_UNSOUND


def test_the_plan_carries_how_long_the_policy_lets_it_wait() -> None:
    assert planned(claim("one", ANNA)).lock_wait_seconds == Policy().lock_wait_seconds == 30
    assert planned(claim("one", ANNA), policy=Policy(lock_wait_seconds=5)).lock_wait_seconds == 5


def test_a_tool_that_only_reads_may_not_lock() -> None:
    contract = replace(locking("claim_sample_book", SHARED), side_effect=SideEffect.READ_ONLY, compensates_by=None)

    assert any("reading locks nothing" in problem for problem in check_contract(contract))
    assert check_contract(locking("claim_sample_book", SHARED)) == []


@pytest.mark.parametrize(
    ("reason", "details", "seconds"),
    [
        (Reason.RESOURCE_LOCKED, {ASK_AGAIN: 1.5}, 1.5),
        (Reason.RESOURCE_LOCKED, {ASK_AGAIN: 0}, 0.0),
        (Reason.RESOURCE_LOCKED, {}, None),
        (Reason.WRONG_STATE, {ASK_AGAIN: 1.5}, None),
    ],
)
def test_only_a_lock_that_may_still_be_had_is_asked_for_again(
    reason: Reason, details: JsonObject, seconds: float | None
) -> None:
    assert asks_again_after(SagaError(reason, "", details=details).info) == seconds

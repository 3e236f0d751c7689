"""Decisions and resolutions of people, while workers die under them: exactly one counts, each gets an answer.

Hard situations 7, 12, 13 and 14: approvals early, twice, late and lost; compensations that fail for good.
"""

import asyncio
import json
from typing import Final

import pytest

from tests.faults.support import hooked_worker
from tests.faults.support.books import check_answer, check_books, check_purchase
from tests.faults.support.control import Point
from tests.faults.support.grid import Grid, Scenario, claims, run_grid, selected
from tests.faults.support.intents import (
    ADMIT,
    AMOUNT_CENTS,
    DEBIT,
    DECIDE,
    FREEZE,
    LARGE_CENTS,
    OPENED_CENTS,
    PARK,
    RESOLVE,
    TRANSFER,
    doomed,
    purchase,
    reverse,
    transfer,
)
from tests.faults.support.world import CALLER, Posted, World, until

DEBIT_UNDONE: Final = f"{DEBIT}.compensate"
TRANSFER_UNDONE: Final = f"{TRANSFER}.compensate"


async def asked(world: World) -> tuple[Posted, str]:
    """Post a purchase that needs an approval, and wait until it is asked for."""
    account = world.account()
    posted = await world.post(purchase(account, LARGE_CENTS))
    await posted.until_asked()
    assert posted.effects() == {}, "nothing is held while only people are awaited"
    assert world.standing(account) == (OPENED_CENTS, 0)
    return posted, account


async def bought(posted: Posted, account: str) -> None:
    """Assert that the purchase was made, on one decision for each step."""
    assert check_answer(posted, await posted.answer()) == "COMMITTED"
    check_purchase(posted, account, "COMMITTED", LARGE_CENTS)
    spent = posted.world.all(
        "select step_id, decision_id from backstay.approval_consumptions where intent_key = %s order by step_id",
        posted.intent_key,
    )
    assert [row["step_id"] for row in spent] == ["debit", "freeze"]
    assert len(posted.audit("decision")) == 1


async def killed_while_waiting(world: World) -> None:
    """The wait survives its worker; the approval is taken by another one."""
    worker = await world.start_worker()
    posted, account = await asked(world)
    worker.kill()
    await world.start_worker()

    answer = await posted.decide()

    assert answer is not None
    assert answer.accepted
    await bought(posted, account)


def killed_deciding(activity: str, point: Point) -> Scenario:
    """Kill the worker around the decision, or around the step that spends it: neither lost nor spent twice."""

    async def scenario(world: World) -> None:
        worker = await world.start_worker()
        posted, account = await asked(world)
        rule = world.arm(activity, point, "kill", posted)
        deciding = asyncio.create_task(posted.decide(decision_id="the-decision"))
        await posted.until_fired(rule)
        await worker.died()
        await world.start_worker()

        answer = await deciding

        assert answer is None or answer.accepted
        await bought(posted, account)

    return scenario


async def decided_early(world: World) -> None:
    """A decision over the plan of a dry run counts, though it comes before the intent was admitted."""
    account = world.account()
    posting = world.posting(purchase(account, LARGE_CENTS))
    async with world.door() as door:
        dry = await door.plan(json.dumps(posting.intent).encode(), CALLER)
    digest = (dry.data or {})["plan_digest"]
    rule = world.arm(ADMIT, "begin", "pause", posting)
    await world.start_worker()
    posted = await world.post(posting)
    await posted.until_fired(rule)
    decision = posted.decision(plan_digest=digest)
    await posted.handle.signal("decide", decision)
    world.control.release(rule)

    await bought(posted, account)

    assert posted.audit("decision")[0]["decisions"] == decision.decision_id


async def decided_in_every_wrong_way(world: World) -> None:
    """Each decision that cannot count gets a definite answer and changes nothing."""
    await world.start_worker()
    posted, account = await asked(world)
    rule = world.arm(DEBIT, "begin", "pause", posted)

    changed = await posted.decide(plan_digest="0" * 64)
    by_the_agent = await posted.decide(approver=CALLER.agent)
    of_no_step = await posted.decide(step_id="nothing")
    first = await posted.decide(decision_id="the-decision")
    await posted.until_fired(rule)
    repeated, twice, denied = await asyncio.gather(
        posted.decide(decision_id="the-decision"),
        posted.decide(decision_id="another"),
        posted.decide("deny", step_id="freeze"),
        return_exceptions=True,
    )
    world.control.release(rule)
    await bought(posted, account)
    late = await posted.decide(decision_id="late")

    answers = [changed, by_the_agent, of_no_step, first, repeated, twice, denied, late]
    assert not any(isinstance(answer, BaseException) for answer in answers), answers
    codes = [
        None if answer is None or isinstance(answer, BaseException) else answer.error and answer.error.code.value
        for answer in answers
    ]
    assert codes[:3] == ["DECISION_INVALID", "NOT_ALLOWED", "DECISION_INVALID"]
    assert first is not None
    assert first.accepted
    assert repeated is None or (not isinstance(repeated, BaseException) and repeated.accepted)
    assert codes[5] in ("DECISION_LATE", None)
    assert codes[6] in ("DECISION_LATE", None), "the step has run on its approval"
    assert late is None or not late.accepted


async def decided_by_many_at_once(world: World) -> None:
    """Of ten who approve at the same time one is heard; of all others each is told so."""
    await world.start_worker()
    posted, account = await asked(world)

    answers = await asyncio.gather(*(posted.decide(decision_id=f"d-{n}", approver=f"p-{n}") for n in range(10)))

    await bought(posted, account)
    assert sum(answer is not None and answer.accepted for answer in answers) <= 1
    assert all(answer is None or answer.accepted or answer.message for answer in answers)


async def approved_and_cancelled_at_once(world: World) -> None:
    """Approval and cancel race through all doors; whoever wins, answers and tables agree."""
    await world.start_worker()
    sagas = [await asked(world) for _ in range(9)]

    async def race(number: int, posted: Posted) -> None:
        cancel = posted.cancel(("update", "signal", "temporal")[number % 3])
        decide = posted.decide()
        await asyncio.gather(*([cancel, decide] if number % 2 else [decide, cancel]))

    await asyncio.gather(*(race(number, posted) for number, (posted, _) in enumerate(sagas)))

    for posted, account in sagas:
        envelope = await posted.answer()
        outcome = check_answer(posted, envelope)
        check_purchase(posted, account, outcome, LARGE_CENTS)
        assert (envelope.data or {})["cause"] == ("none" if outcome == "COMMITTED" else "cancelled")


async def denied_while_a_step_runs(world: World) -> None:
    """A denial after an approval wins as long as the step has not spent it: what landed is undone."""
    await world.start_worker()
    posted, account = await asked(world)
    rule = world.arm(FREEZE, "committed", "pause", posted)
    approved = await posted.decide()
    await posted.until_fired(rule)

    denying = asyncio.create_task(posted.decide("deny", step_id="debit"))
    await until("the denial to be judged", lambda: posted.journal("answered", DECIDE)[1:])
    world.control.release(rule)
    denied = await denying
    envelope = await posted.answer()

    assert approved is not None
    assert approved.accepted
    assert denied is not None
    assert denied.accepted
    assert check_answer(posted, envelope) == "COMPENSATED"
    assert (envelope.data or {})["cause"] == "denied"
    check_purchase(posted, account, "COMPENSATED", LARGE_CENTS)


async def decided_after_the_time_was_over(world: World) -> None:
    """All workers were down when the time to decide ended: nothing runs afterwards."""
    policy = json.dumps({"approval_expiry_seconds": 4})
    worker = await world.start_worker(extra={hooked_worker.POLICY: policy})
    posted, account = await asked(world)
    worker.kill()
    expired = "select expires_at < now() as over from backstay.approval_requests where intent_key = %s limit 1"
    await until("the time to be over", lambda: (world.one(expired, posted.intent_key) or {})["over"])
    await world.start_worker(extra={hooked_worker.POLICY: policy})

    answer = await posted.decide()
    envelope = await posted.answer()

    assert answer is None or not answer.accepted
    assert check_answer(posted, envelope) == "NOT_APPLIED"
    assert (envelope.data or {})["cause"] == "expired"
    check_purchase(posted, account, "NOT_APPLIED", LARGE_CENTS)


async def refused_for_good(world: World, kill: tuple[str, Point] | None = None) -> tuple[Posted, str]:
    """Have a purchase turn back after its account was closed by hand: its refund is refused, and it parks."""
    account = world.account()
    posting = world.posting(doomed(account))
    rule = world.arm(DEBIT_UNDONE, "begin", "pause", posting)
    worker = await world.start_worker()
    posted = await world.post(posting)
    await posted.until_fired(rule)
    world.do("select ledger.close_account(%s)", account)
    deadly = world.arm(*kill, "kill", posting) if kill else None
    world.control.release(rule)
    if deadly:
        await posted.until_fired(deadly)
        await worker.died()
        await world.start_worker()
    await posted.until_parked("COMPENSATION_REFUSED")
    return posted, account


async def closed_account(world: World) -> None:
    """What cannot be undone parks; what depends on it waits; an operator's word ends it, with the residue told."""
    posted, account = await refused_for_good(world)
    parked = await posted.status()
    assert check_answer(posted, parked) == "PARKED"
    assert posted.effects() == {"freeze": "LANDED", "debit": "LANDED"}
    assert posted.compensated() == [], "the hold waits for its capture"
    (stuck,) = [step for step in (parked.data or {})["steps"] if step["state"] == "PARKED"]
    assert stuck["step_id"] == "debit"
    assert stuck["error"]["code"] == "WRONG_STATE"

    cancelled = await posted.cancel("update")
    again = await posted.resolve("retry", step_id="debit")
    await until("the second refusal", lambda: len(posted.audit("compensation_refused")) == 2)
    await posted.until_parked("COMPENSATION_REFUSED")
    unsaid = await posted.resolve("skip", step_id="debit")
    skipped = await posted.resolve("skip", step_id="debit", evidence="paid out in cash, receipt 17")
    envelope = await posted.answer()

    assert cancelled is not None
    assert not cancelled.accepted
    assert again is not None
    assert again.accepted
    assert unsaid is not None
    assert not unsaid.accepted
    assert skipped is not None
    assert skipped.accepted
    assert check_answer(posted, envelope) == "COMPENSATED"
    told = {step["step_id"]: step for step in (envelope.data or {})["steps"]}
    assert "receipt 17" in told["debit"]["residue"]
    assert world.standing(account) == (OPENED_CENTS - AMOUNT_CENTS, 0)


def killed_parking(activity: str, point: Point) -> Scenario:
    """Kill the worker around the parking, or around the operator's word: parked once, resolved once."""

    async def scenario(world: World) -> None:
        posted, _ = await refused_for_good(world, (activity, point) if activity == PARK else None)
        if activity == RESOLVE:
            rule = world.arm(activity, point, "kill", posted)
            resolving = asyncio.create_task(posted.resolve("done", step_id="debit", evidence="by hand"))
            await posted.until_fired(rule)
            await world.workers[-1].died()
            await world.start_worker()
            answer = await resolving
        else:
            answer = await posted.resolve("done", step_id="debit", evidence="by hand")

        envelope = await posted.answer()

        assert answer is None or answer.accepted
        assert check_answer(posted, envelope) == "COMPENSATED"
        assert len(posted.audit("parked")) == 1
        assert len(posted.audit("resolution")) == 1
        assert posted.compensated() == ["freeze"]

    return scenario


async def attempts_run_out(world: World) -> None:
    """A compensation that only fails, and decides nothing, is tried as often as the plan says, then parks."""
    account = world.account()
    posting = world.posting(doomed(account))
    rule = world.arm(DEBIT_UNDONE, "begin", "fail", posting, times=0)
    policy = json.dumps({"compensation_attempts_max": 3, "compensation_backoff_max_seconds": 1})
    await world.start_worker(extra={hooked_worker.POLICY: policy})
    posted = await world.post(posting)
    await posted.until_parked("COMPENSATION_REFUSED")
    assert world.control.fired(rule) >= 3
    assert posted.audit("compensation_refused") == [], "nothing was decided"

    world.control.disarm(rule)
    await posted.resolve("retry", step_id="debit")
    envelope = await posted.answer()

    assert check_answer(posted, envelope) == "COMPENSATED"
    assert posted.compensated() == ["debit", "freeze"]
    check_purchase(posted, account, "COMPENSATED", AMOUNT_CENTS)


async def money_is_spent_meanwhile(world: World) -> None:
    """What was paid in is gone when it is to be taken back: nothing is half undone, the state is told, it parks."""
    account, savings = world.account(0), world.account()
    steps = [transfer(savings, account, 900), *purchase(account, 500), reverse(500)]
    posting = world.posting(steps)
    rule = world.arm(TRANSFER_UNDONE, "begin", "pause", posting)
    await world.start_worker()
    posted = await world.post(posting)
    await posted.until_fired(rule)
    spent = await world.post(purchase(account, 300))
    assert check_answer(spent, await spent.answer()) == "COMMITTED"
    world.control.release(rule)

    await posted.until_parked("COMPENSATION_REFUSED")
    parked = await posted.status()

    assert posted.compensated() == ["debit", "freeze"]
    assert world.standing(account) == (600, 0), "nothing was taken of what is there"
    (stuck,) = [step for step in (parked.data or {})["steps"] if step["state"] == "PARKED"]
    assert stuck["error"]["code"] == "FUNDS_INSUFFICIENT"
    assert "600" in json.dumps(stuck["error"]), "the state that was met is told"
    topped = await world.post([transfer(savings, account, 300, "topup")])
    assert check_answer(topped, await topped.answer()) == "COMMITTED"
    await posted.resolve("retry", step_id="transfer")
    assert check_answer(posted, await posted.answer()) == "COMPENSATED"
    assert world.standing(account) == (0, 0)


SCENARIOS: Final[dict[str, Scenario]] = {
    "killed while waiting": killed_while_waiting,
    "killed while the decision is written": killed_deciding(DECIDE, "written"),
    "killed after the decision": killed_deciding(DECIDE, "committed"),
    "killed while the approval is spent": killed_deciding(FREEZE, "written"),
    "killed after the approval was spent": killed_deciding(FREEZE, "committed"),
    "decided early": decided_early,
    "decided in every wrong way": decided_in_every_wrong_way,
    "decided by many at once": decided_by_many_at_once,
    "approved and cancelled at once": approved_and_cancelled_at_once,
    "denied while a step runs": denied_while_a_step_runs,
    "decided after the time was over": decided_after_the_time_was_over,
    "account closed before the refund": closed_account,
    "killed while it is parked": killed_parking(PARK, "written"),
    "killed after it was parked": killed_parking(PARK, "committed"),
    "killed while it is resolved": killed_parking(RESOLVE, "written"),
    "killed after it was resolved": killed_parking(RESOLVE, "committed"),
    "attempts of a compensation run out": attempts_run_out,
    "money spent before it is taken back": money_is_spent_meanwhile,
}

SLOW: Final = frozenset(
    {
        "killed while the decision is written",
        "killed while it is parked",
        "killed after it was parked",
        "killed while it is resolved",
        "attempts of a compensation run out",
    }
)


@pytest.fixture(scope="module")
async def grid(request: pytest.FixtureRequest, module_world: World) -> Grid:
    """How the scenarios ended."""
    return await run_grid(module_world, selected(request, SCENARIOS))


@pytest.mark.situation(7, "F42", claims=["account closed before the refund", "attempts of a compensation run out"])
@pytest.mark.situation(12, claims=["money spent before it is taken back"])
@pytest.mark.situation(
    13,
    claims=[
        "decided early",
        "decided in every wrong way",
        "decided by many at once",
        "approved and cancelled at once",
        "decided after the time was over",
    ],
)
@pytest.mark.situation(
    14,
    claims=[
        "killed while the decision is written",
        "killed after the decision",
        "killed while the approval is spent",
        "killed after the approval was spent",
    ],
)
@pytest.mark.parametrize("claim", claims(SCENARIOS, SLOW))
def test_what_people_say_counts_once_and_is_answered(claim: str, grid: Grid) -> None:
    grid.hold(claim)


def test_the_books_are_right_after_all_that_people_said(grid: Grid, module_world: World) -> None:
    del grid  # it has run

    check_books(module_world)

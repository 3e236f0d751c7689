"""A run is terminated or reset from outside, in Temporal's own UI: nothing is lost, nothing is done twice.

The sweep finds what nobody carries any more; the new run adopts it and parks it INTERRUPTED, and an operator closes
or forwards it.
"""

import asyncio
import json
from typing import Final, Literal

import pytest
from temporalio.client import WorkflowFailureError

from contracts.envelope import Envelope
from tests.faults.support.books import check_answer, check_purchase
from tests.faults.support.control import Point
from tests.faults.support.grid import Grid, Scenario, claims, run_grid, selected
from tests.faults.support.intents import (
    ADMIT,
    AMOUNT_CENTS,
    DEBIT,
    FREEZE,
    LARGE_CENTS,
    SETTLE,
    doomed,
    purchase,
)
from tests.faults.support.world import CALLER, Posted, World, until

Verb = Literal["close", "forward"]


async def interrupted(world: World, activity: str, point: Point, *, forward: bool = True) -> tuple[Posted, str]:
    """Let the worker die at a point and the run be terminated; start another worker, and sweep."""
    account = world.account()
    posting = world.posting(purchase(account) if forward else doomed(account))
    rule = world.arm(activity, point, "kill", posting)
    worker = await world.start_worker()
    posted = await world.post(posting)
    await posted.until_fired(rule)
    await worker.died()
    await posted.terminate()
    await world.start_worker()

    swept = await world.sweep()

    assert swept.adopted == (posted.intent_id,)
    adopted = posted.latest()
    await adopted.until_parked("INTERRUPTED")
    assert check_answer(adopted, await adopted.status()) == "PARKED"
    return adopted, account


def terminated(activity: str, point: Point, verb: Verb, outcome: str, compensated: list[str]) -> Scenario:
    """Interrupt a saga going forward and let an operator decide."""

    async def scenario(world: World) -> None:
        posted, account = await interrupted(world, activity, point)

        answer = await posted.resolve(verb)
        envelope = await posted.answer()

        assert answer is not None
        assert answer.accepted
        assert check_answer(posted, envelope) == outcome
        check_purchase(posted, account, outcome, AMOUNT_CENTS)
        assert posted.compensated() == compensated
        assert (envelope.data or {})["cause"] == ("none" if verb == "forward" else "interrupted")
        assert posted.claimed()["epoch"] == 2
        assert len(posted.audit("adopted")) == 1

    return scenario


async def terminated_while_undoing(world: World) -> None:
    """Half undone and interrupted, an intent can only be closed; what was undone is not undone again."""
    posted, account = await interrupted(world, f"{FREEZE}.compensate", "begin", forward=False)
    assert posted.compensated() == ["debit"]

    refused = await posted.resolve("forward")
    taken = await posted.resolve("close")
    envelope = await posted.answer()

    assert refused is not None
    assert not refused.accepted
    assert taken is not None
    assert taken.accepted
    assert check_answer(posted, envelope) == "COMPENSATED"
    check_purchase(posted, account, "COMPENSATED", AMOUNT_CENTS)
    assert posted.compensated() == ["debit", "freeze"]
    assert (envelope.data or {})["cause"] == "refused"


async def terminated_while_a_step_runs_then_swept(world: World) -> None:
    """A step that outlives its run is refused once another run has adopted the intent."""
    account = world.account()
    posting = world.posting(purchase(account))
    rule = world.arm(FREEZE, "begin", "pause", posting, stubborn=True)
    await world.start_worker()
    posted = await world.post(posting)
    await posted.until_fired(rule)
    await posted.terminate()
    swept = await world.sweep()
    assert swept.adopted == (posted.intent_id,)
    adopted = posted.latest()
    await adopted.until_parked("INTERRUPTED")

    world.control.release(rule)
    await until("the old step's answer", lambda: posted.journal("refused", FREEZE))

    assert [entry.detail for entry in posted.journal("refused", FREEZE)] == ["RUN_STALE"]
    assert posted.effects() == {}
    await adopted.resolve("forward")
    assert check_answer(adopted, await adopted.answer()) == "COMMITTED"
    check_purchase(adopted, account, "COMMITTED", AMOUNT_CENTS)


async def terminated_while_steps_run_that_go_on(world: World) -> None:
    """Terminating stops no local step; what they did is what the tables, and so every later answer, say."""
    account = world.account()
    posting = world.posting(purchase(account))
    rule = world.arm(FREEZE, "begin", "pause", posting)
    await world.start_worker()
    posted = await world.post(posting, task_seconds=10)
    await posted.until_fired(rule)
    await posted.terminate()
    with pytest.raises(WorkflowFailureError):
        await posted.handle.result()

    world.control.release(rule)
    await until("the step to land", lambda: "freeze" in posted.effects())
    await until("its worker to find out", lambda: posted.phase() == "COMMITTED" or len(posted.journal("answered")) >= 2)
    await world.sweep()
    standing = posted.claimed()
    if standing["final_at"] is None:
        await posted.latest().until_parked("INTERRUPTED")
        await posted.latest().resolve("close")
        await posted.latest().answer()

    async with world.door() as door:
        envelope = await door.post(_body(posted), CALLER)
    outcome = check_answer(posted, envelope)
    assert envelope.meta.duplicate
    check_purchase(posted, account, outcome, AMOUNT_CENTS)


async def terminated_while_people_are_awaited(world: World) -> None:
    """A forwarded intent asks again what nobody had decided, and spends what somebody had."""
    accounts = world.account(), world.account()
    await world.start_worker()
    undecided, decided = [await world.post(purchase(account, LARGE_CENTS)) for account in accounts]
    await undecided.until_asked()
    await decided.until_asked()
    rule = world.arm(FREEZE, "begin", "pause", decided)
    approved = await decided.decide()
    assert approved is not None
    assert approved.accepted
    await decided.until_fired(rule)
    await undecided.terminate()
    await decided.terminate()

    swept = await world.sweep()
    world.control.release(rule)

    assert set(swept.adopted) == {undecided.intent_id, decided.intent_id}
    for posted in (undecided.latest(), decided.latest()):
        await posted.until_parked("INTERRUPTED")
        forwarded = await posted.resolve("forward")
        assert forwarded is not None
        assert forwarded.accepted
    await undecided.latest().until_asked()
    assert undecided.effects() == {}
    await undecided.latest().decide()
    for posted, account in zip((undecided.latest(), decided.latest()), accounts, strict=True):
        assert check_answer(posted, await posted.answer()) == "COMMITTED"
        check_purchase(posted, account, "COMMITTED", LARGE_CENTS)
        assert len(posted.audit("decision")) == 1


async def sweeps_at_once(world: World) -> None:
    """However many sweep at the same time, one run adopts, and nobody adopts what is carried."""
    account, waiting_account = world.account(), world.account()
    await world.start_worker()
    waiting = await world.post(purchase(waiting_account, LARGE_CENTS))
    lost = await world.post(purchase(account, LARGE_CENTS))
    await waiting.until_asked()
    await lost.until_asked()
    await lost.terminate()

    swept = await asyncio.gather(*(world.sweep() for _ in range(4)))

    assert {intent for one in swept for intent in one.started} == {lost.intent_id}
    await lost.latest().until_parked("INTERRUPTED")
    assert lost.claimed()["epoch"] == 2
    assert waiting.claimed()["epoch"] == 1
    assert (await world.sweep()).started == ()
    await lost.latest().resolve("close")
    assert check_answer(lost, await lost.latest().answer()) == "NOT_APPLIED"
    await waiting.decide()
    assert check_answer(waiting, await waiting.answer()) == "COMMITTED"


async def reset_when_all_was_done(world: World) -> None:
    """A committed intent that is reset answers what it had answered; nothing runs again."""
    account = world.account()
    await world.start_worker()
    posted = await world.post(purchase(account))
    first = await posted.answer()

    again = await posted.reset("first")
    envelope = await again.answer()

    assert check_answer(posted, first) == check_answer(again, envelope) == "COMMITTED"
    assert first.data == envelope.data
    assert len(posted.journal("started", FREEZE)) == 1
    check_purchase(again, account, "COMMITTED", AMOUNT_CENTS)


def reset_while_waiting(to: Literal["first", "last"], *, approved: bool) -> Scenario:
    """The new run adopts the intent and rests; forwarded, it goes on with what was decided."""

    async def scenario(world: World) -> None:
        account = world.account()
        await world.start_worker()
        posted = await world.post(purchase(account, LARGE_CENTS))
        await posted.until_asked()
        rule = world.arm(DEBIT, "begin", "pause", posted, stubborn=True)
        if approved:
            decided = await posted.decide()
            assert decided is not None
            assert decided.accepted
            await posted.until_fired(rule)

        again = await posted.reset(to)
        if approved:
            await until("the reset run to ask the tables", lambda: len(posted.journal("started", ADMIT)) >= 2)
        await again.until_parked("INTERRUPTED")
        world.control.release(rule)
        if approved:
            await until("the old run's step to be told", lambda: posted.journal("refused", DEBIT))
            assert {entry.detail for entry in posted.journal("refused", DEBIT)} == {"RUN_STALE"}
        forwarded = await again.resolve("forward")
        assert forwarded is not None
        assert forwarded.accepted
        if not approved:
            await again.until_asked()
            await again.decide()
        envelope = await again.answer()

        assert check_answer(again, envelope) == "COMMITTED"
        check_purchase(again, account, "COMMITTED", LARGE_CENTS)
        assert again.claimed()["epoch"] == 2, "the two runs did not take it from each other"
        assert len(again.audit("adopted")) == 1
        assert len(again.audit("decision")) == 1

    return scenario


async def resolved_by_commands(world: World) -> None:
    """What an operator types finds it, ends it, and says what the tables hold."""
    account = world.account()
    await world.start_worker()
    posted = await world.post(purchase(account, LARGE_CENTS))
    await posted.until_asked()
    await posted.terminate()

    swept = await world.command("sweep", "--json")
    parked = await world.command("parked", "--json")
    early = await world.command("intent", "show", posted.intent_id, "--json", exit_code=4)
    closed = await world.command("resolve", posted.intent_id, "close", "--json")
    await posted.latest().answer()
    shown = await world.command("intent", "show", posted.intent_id, "--json", exit_code=1)
    await world.command("resolve", posted.intent_id, "forward", "--json", exit_code=1)
    await world.command("check")

    assert posted.intent_id in json.dumps(swept)
    assert posted.intent_id in json.dumps(parked)
    assert early["data"]["outcome"] == "PARKED"
    assert closed["status"] != "error"
    assert check_answer(posted, Envelope.model_validate(shown)) == "NOT_APPLIED"


SCENARIOS: Final[dict[str, Scenario]] = {
    "terminated before step 1, closed": terminated(FREEZE, "begin", "close", "NOT_APPLIED", []),
    "terminated before step 1, forwarded": terminated(FREEZE, "begin", "forward", "COMMITTED", []),
    "terminated between steps, closed": terminated(FREEZE, "committed", "close", "COMPENSATED", ["freeze"]),
    "terminated between steps, forwarded": terminated(FREEZE, "committed", "forward", "COMMITTED", []),
    "terminated after the last step, closed": terminated(SETTLE, "begin", "close", "COMPENSATED", ["debit", "freeze"]),
    "terminated after the last step, forwarded": terminated(SETTLE, "begin", "forward", "COMMITTED", []),
    "terminated while undoing": terminated_while_undoing,
    "terminated while a step runs, then swept": terminated_while_a_step_runs_then_swept,
    "terminated while steps run that go on": terminated_while_steps_run_that_go_on,
    "terminated while people are awaited": terminated_while_people_are_awaited,
    "terminated, and resolved by commands": resolved_by_commands,
    "four sweeps at once": sweeps_at_once,
    "reset when all was done": reset_when_all_was_done,
    "reset to the first task while waiting": reset_while_waiting("first", approved=False),
    "reset to the last task while waiting": reset_while_waiting("last", approved=False),
    "reset to the first task after an approval": reset_while_waiting("first", approved=True),
    "reset to the last task after an approval": reset_while_waiting("last", approved=True),
}


def _body(posted: Posted) -> bytes:
    return json.dumps(posted.request.intent).encode()


SLOW: Final = frozenset({"reset to the last task while waiting"})


@pytest.fixture(scope="module")
async def grid(request: pytest.FixtureRequest, module_world: World, empty_template: str) -> Grid:
    """How the scenarios ended: each on a database of its own, since a sweep looks at all that is open."""
    return await run_grid(module_world, selected(request, SCENARIOS), template=empty_template)


@pytest.mark.situation(17)
@pytest.mark.parametrize("claim", claims(SCENARIOS, SLOW))
def test_a_run_that_is_ended_from_outside_loses_and_repeats_nothing(claim: str, grid: Grid) -> None:
    grid.hold(claim)

"""Close, settle and park on a real PostgreSQL: one phase at a time, the rows decide, and no race has two winners."""

import asyncio

import pytest

from contracts.envelope import Cause, Outcome, StepState
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.saga import EffectSeen, IntentPhase, ParkReason
from tests.support.desk import Desk, refused
from tests.support.samples import look, note

# --- close -------------------------------------------------------------------------------------------------------


async def test_closing_lists_what_landed_in_landing_order(desk: Desk) -> None:
    intent = await desk.intent(note("a"), note("b"), note("c"))
    first, second = await intent.execute("a"), await intent.execute("b")

    closed = await intent.close()

    assert closed.standing.phase is IntentPhase.CLOSING
    assert [(effect.step_id, effect.transaction_id) for effect in closed.effects] == [
        ("a", first.transaction_id),
        ("b", second.transaction_id),
    ]


async def test_closing_twice_gives_the_same_answer_and_keeps_the_first_cause(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    await intent.execute("a")
    error = SagaError(Reason.FUNDS_INSUFFICIENT, "too little").info

    first = await intent.close(Cause.REFUSED, error)
    again = await intent.close(Cause.CANCELLED)

    assert (first.standing.cause, again.standing.cause) == (Cause.REFUSED, Cause.REFUSED)
    assert (first.effects, first.standing.error) == (again.effects, error)
    assert again.standing.error == error
    assert intent.noted().count("closed") == 1


async def test_after_the_close_no_step_lands(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    await intent.close()

    assert await refused(intent.execute("a")) is Reason.SUPERSEDED
    assert desk.count("samples.notes") == 0


async def test_the_list_tells_what_is_compensated_and_fenced_already(desk: Desk) -> None:
    intent = await desk.intent(note("a"), note("b"))
    await intent.execute("a")
    await intent.close()
    await intent.compensate("a")
    await intent.compensate("b")

    effects = (await intent.close()).effects

    assert [(effect.step_id, effect.state) for effect in effects] == [("a", "COMPENSATED"), ("b", "TOMBSTONE")]


async def test_a_landed_pivot_shuts_the_way_back(desk: Desk) -> None:
    intent = await desk.intent(note("a", "seal"))
    landed = await intent.execute("a")

    closed = await intent.close()

    assert closed.past_pivot
    assert closed.standing.phase is IntentPhase.ADMITTED
    assert closed.effects == (EffectSeen(step_id="a", state="LANDED", transaction_id=landed.transaction_id or 0),)


async def test_an_expiry_closes_only_what_is_due_by_the_databases_clock(desk: Desk) -> None:
    intent = await desk.intent(note("a", "guard"))

    early = await intent.close(Cause.EXPIRED)
    desk.rows("update backstay.approval_requests set expires_at = now()")
    late = await intent.close(Cause.EXPIRED)

    assert (early.standing.phase, late.standing.phase) == (IntentPhase.ADMITTED, IntentPhase.CLOSING)
    assert early.due_in_seconds is not None
    assert 0 < early.due_in_seconds <= 86_400


async def test_an_expiry_does_not_close_what_was_decided_in_time(desk: Desk) -> None:
    intent = await desk.intent(note("a", "guard"))
    await intent.decide()
    desk.rows("update backstay.approval_requests set expires_at = now()")

    closed = await intent.close(Cause.EXPIRED)

    assert closed.standing.phase is IntentPhase.ADMITTED
    assert closed.standing.ask.approved == ("a",)


async def test_a_parked_intent_is_not_closed_but_told(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    await intent.park(ParkReason.MISMATCH)

    closed = await intent.close()

    assert (closed.standing.phase, closed.standing.parked) == (IntentPhase.ADMITTED, ParkReason.MISMATCH)


async def test_who_closed_it_is_in_the_audit_log(desk: Desk) -> None:
    intent = await desk.intent(note("a"))

    await intent.close()

    assert desk.one("select actor from backstay.audit_log where kind = 'closed'")["actor"] == "tester"


# --- settle ------------------------------------------------------------------------------------------------------


async def test_the_rows_of_all_writing_steps_commit_the_intent(desk: Desk) -> None:
    intent = await desk.intent(note("a"), look("r"), note("b"))
    await intent.execute("a")
    await intent.execute("b")

    standing = await intent.settle()

    assert standing.phase is IntentPhase.COMMITTED
    assert standing.report is not None
    assert standing.report.outcome is Outcome.COMMITTED
    assert intent.row()["final_at"] is not None


async def test_settling_twice_gives_the_same_answer(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    await intent.execute("a")

    first, again = await intent.settle(), await intent.settle()

    assert (first.phase, first.report) == (again.phase, again.report)
    assert intent.noted().count("settled") == 1


async def test_a_missing_effect_parks_the_intent_instead_of_committing_it(desk: Desk) -> None:
    intent = await desk.intent(note("a"), note("b"))
    await intent.execute("a")

    standing = await intent.settle()

    assert (standing.phase, standing.parked) == (IntentPhase.ADMITTED, ParkReason.MISMATCH)
    assert standing.parked_detail == {"live": ["a"], "wanted": ["a", "b"]}


async def test_an_effect_that_is_still_live_parks_the_intent_instead_of_ending_it(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    await intent.execute("a")
    await intent.close()

    standing = await intent.settle()

    assert (standing.phase, standing.parked) == (IntentPhase.CLOSING, ParkReason.MISMATCH)


async def test_an_undone_intent_is_compensated_and_one_that_never_landed_not_applied(desk: Desk) -> None:
    undone, never = await desk.intent(note("a")), await desk.intent(note("b"))
    await undone.execute("a")
    for intent in (undone, never):
        await intent.close()
    await undone.compensate("a")
    await never.compensate("b")

    assert (await undone.settle()).phase is IntentPhase.COMPENSATED
    assert (await never.settle()).phase is IntentPhase.NOT_APPLIED


async def test_the_report_is_told_by_the_rows(desk: Desk) -> None:
    intent = await desk.intent(note("a"), note("b"))
    landed = await intent.execute("a")
    await intent.close(Cause.REFUSED)
    desk.behaviour.leave("undo:a", "the ink stays")
    await intent.compensate("a")

    report = (await intent.settle()).report

    assert report is not None
    one, other = report.steps
    assert (one.state, one.transaction_id, one.residue) == (
        StepState.COMPENSATED,
        landed.transaction_id,
        "the ink stays",
    )
    assert (one.output, one.applied_args) == (landed.output, landed.applied_args)
    assert (other.state, other.transaction_id) == (StepState.PLANNED, None)


async def test_a_parked_intent_is_not_settled(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    await intent.execute("a")
    await intent.park(ParkReason.INTERRUPTED)

    assert (await intent.settle()).parked is ParkReason.INTERRUPTED
    assert intent.row()["phase"] == "ADMITTED"


# --- park --------------------------------------------------------------------------------------------------------


async def test_parking_twice_keeps_the_first_reason(desk: Desk) -> None:
    intent = await desk.intent(note("a"))

    await intent.park(ParkReason.COMPENSATION_REFUSED, "a")
    again = await intent.park(ParkReason.MISMATCH)

    assert again.parked is ParkReason.COMPENSATION_REFUSED
    assert intent.noted().count("parked") == 1


async def test_a_final_phase_is_not_parked_and_never_changes(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    await intent.execute("a")
    await intent.settle()
    before = intent.row()

    parked, closed = await intent.park(ParkReason.MISMATCH), await intent.close()

    assert (parked.phase, closed.standing.phase) == (IntentPhase.COMMITTED, IntentPhase.COMMITTED)
    assert intent.row() == before


# --- stale runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"run": "run-2"}, {"epoch": 2}], ids=["run", "epoch"])
async def test_a_stale_run_changes_no_phase(desk: Desk, change: dict[str, object]) -> None:
    intent = await desk.intent(note("a"))
    stale = intent.seen_by(**change)

    for work in (stale.close(), stale.settle(), stale.park(ParkReason.MISMATCH)):
        assert await refused(work) is Reason.RUN_STALE
    assert intent.noted() == ["admitted"]


# --- races -------------------------------------------------------------------------------------------------------


async def test_between_settle_and_close_one_wins_and_both_say_so(desk: Desk) -> None:
    async def race(number: int) -> IntentPhase:
        intent = await desk.intent(note(f"a{number}"))
        await intent.execute(f"a{number}")
        closing, settling = intent.close(), intent.settle()
        await asyncio.gather(*([closing, settling] if number % 2 else [settling, closing]))
        closed, settled = await intent.close(), intent.row()
        assert closed.standing.phase == settled["phase"]
        return closed.standing.phase

    phases = [
        phase
        for first in range(0, 60, 10)
        for phase in await asyncio.gather(*(race(number) for number in range(first, first + 10)))
    ]

    assert set(phases) == {IntentPhase.COMMITTED, IntentPhase.CLOSING}


async def test_of_many_closes_at_once_one_writes(desk: Desk) -> None:
    intent = await desk.intent(note("a"))

    answers = await asyncio.gather(*(intent.close(cause) for cause in [Cause.CANCELLED, Cause.REFUSED] * 5))

    assert len({answer.standing.cause for answer in answers}) == 1
    assert intent.noted().count("closed") == 1

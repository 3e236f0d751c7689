"""Decisions and resolutions on a real PostgreSQL: each gets a definite answer, and exactly one counts."""

import asyncio

import pytest

from contracts.envelope import Cause
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.saga import DecisionAnswer, IntentPhase, ParkReason, ResolutionAnswer
from tests.support.desk import Desk, Desked, refused
from tests.support.samples import note


def reason(answer: DecisionAnswer | ResolutionAnswer) -> Reason | None:
    assert answer.accepted == (answer.error is None)
    return answer.error.code if answer.error else None


def asked(answer: DecisionAnswer) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    return answer.ask.undecided, answer.ask.approved, answer.ask.denied


# --- decisions that count ------------------------------------------------------------------------------------------


async def test_an_approval_of_all_covers_every_asked_step(desk: Desk) -> None:
    intent = await desk.intent(note("a", "guard"), note("b"), note("c", "guard"))

    answer = await intent.decide()

    assert asked(answer) == ((), ("a", "c"), ())
    assert desk.rows("select step_id, verdict, approver, door from backstay.decisions order by step_id") == [
        {"step_id": "a", "verdict": "approve", "approver": "approver", "door": "update"},
        {"step_id": "c", "verdict": "approve", "approver": "approver", "door": "update"},
    ]


async def test_an_approval_of_one_step_leaves_the_other_undecided(desk: Desk) -> None:
    intent = await desk.intent(note("a", "guard"), note("b", "guard"))

    assert asked(await intent.decide(step_id="b")) == (("a",), ("b",), ())


async def test_a_denial_beats_an_approval_that_is_not_spent(desk: Desk) -> None:
    intent = await desk.intent(note("a", "guard"), note("b", "guard"))
    await intent.decide()

    assert asked(await intent.decide("deny", step_id="b")) == ((), ("a",), ("b",))
    assert await refused(intent.execute("b")) is Reason.APPROVAL_MISSING


async def test_a_denial_of_all_covers_what_has_not_run(desk: Desk) -> None:
    intent = await desk.intent(note("a", "guard"), note("b", "guard"))
    await intent.decide()
    await intent.execute("a")

    answer = await intent.decide("deny")

    assert answer.accepted
    assert asked(answer) == ((), ("a",), ("b",))


async def test_the_principal_may_decide(desk: Desk) -> None:
    intent = await desk.intent(note("a", "guard"))

    assert (await intent.decide(approver="customer")).accepted


async def test_the_decision_is_in_the_audit_log_and_in_that_of_its_effect(desk: Desk) -> None:
    intent = await desk.intent(note("a", "guard"))
    await intent.decide(decision_id="d7", reason="spoke to her")
    await intent.execute("a")

    said = desk.one("select actor, decisions, result from backstay.audit_log where kind = 'decision'")
    assert (said["actor"], said["decisions"]) == ("approver", "d7")
    assert "spoke to her" in said["result"]
    assert desk.one("select decisions from backstay.audit_log where kind = 'effect'")["decisions"] == "d7"


# --- decisions that do not -----------------------------------------------------------------------------------------


async def test_the_same_decision_again_is_accepted_and_changes_nothing(desk: Desk) -> None:
    intent = await desk.intent(note("a", "guard"))

    first, again = await intent.decide(), await intent.decide()

    assert (first.accepted, again.accepted) == (True, True)
    assert desk.count("backstay.decisions") == 1


@pytest.mark.parametrize(
    "changes", [{"verdict": "deny"}, {"approver": "other"}, {"step_id": "b"}, {"plan_digest": "0" * 64}], ids=str
)
async def test_a_decision_id_is_good_for_one_decision(desk: Desk, changes: dict[str, str]) -> None:
    intent = await desk.intent(note("a", "guard"), note("b", "guard"))
    await intent.decide(decision_id="d1", step_id="a")

    answer = await intent.decide(**{"verdict": "approve", "decision_id": "d1", "step_id": "a", **changes})

    assert reason(answer) is Reason.DECISION_INVALID
    assert desk.count("backstay.decisions") == 1


async def test_an_agent_has_no_say(desk: Desk) -> None:
    intent = await desk.intent(note("a", "guard"))

    answer = await intent.decide(approver="agent")

    assert reason(answer) is Reason.NOT_ALLOWED
    assert intent.noted()[-1] == "decision_refused"


@pytest.mark.parametrize(
    "changes",
    [
        {"plan_digest": "0" * 64},
        {"step_id": "b"},
        {"step_id": "nowhere"},
        {"intent_id": "int_" + "a" * 26},
    ],
    ids=str,
)
async def test_a_decision_about_something_else_is_invalid(desk: Desk, changes: dict[str, str]) -> None:
    intent = await desk.intent(note("a", "guard"), note("b"))

    answer = await intent.decide(**changes)

    assert reason(answer) is Reason.DECISION_INVALID
    assert asked(answer) == (("a",), (), ())


async def test_a_decision_of_another_intents_plan_does_not_count_here(desk: Desk) -> None:
    one, other = await desk.intent(note("a", "guard")), await desk.intent(note("a", "guard"))

    answer = await one.decide(plan_digest=other.standing.plan_digest)

    assert reason(answer) is Reason.DECISION_INVALID


async def test_a_second_approval_is_late(desk: Desk) -> None:
    intent = await desk.intent(note("a", "guard"))
    await intent.decide()

    assert reason(await intent.decide(decision_id="d2", step_id="a")) is Reason.DECISION_LATE
    assert reason(await intent.decide(decision_id="d3")) is Reason.DECISION_LATE


async def test_a_denial_is_final(desk: Desk) -> None:
    intent = await desk.intent(note("a", "guard"))
    await intent.decide("deny")

    answer = await intent.decide(step_id="a")

    assert reason(answer) is Reason.DECISION_LATE
    assert asked(answer) == ((), (), ("a",))


async def test_a_denial_after_the_step_has_run_is_late(desk: Desk) -> None:
    intent = await desk.intent(note("a", "guard"))
    await intent.decide()
    await intent.execute("a")

    assert reason(await intent.decide("deny", step_id="a")) is Reason.DECISION_LATE


async def test_an_expiry_is_judged_by_the_databases_clock(desk: Desk) -> None:
    intent = await desk.intent(note("a", "guard"))
    desk.rows("update backstay.approval_requests set expires_at = now()")

    answer = await intent.decide()

    assert reason(answer) is Reason.DECISION_LATE
    assert desk.count("backstay.decisions") == 0


@pytest.mark.parametrize("ended", ["closing", "committed"])
async def test_a_decision_about_an_intent_that_is_over_is_late(desk: Desk, ended: str) -> None:
    intent = await desk.intent(note("a", "guard"))
    if ended == "closing":
        await intent.close()
    else:
        await intent.decide()
        await intent.execute("a")
        await intent.settle()

    assert reason(await intent.decide(decision_id="d9")) is Reason.DECISION_LATE


async def test_a_stale_run_takes_no_decision(desk: Desk) -> None:
    intent = await desk.intent(note("a", "guard"))

    assert await refused(intent.seen_by(epoch=2).decide()) is Reason.RUN_STALE
    assert await refused(intent.seen_by(run="run-2").decide()) is Reason.RUN_STALE


# --- races -------------------------------------------------------------------------------------------------------


async def test_of_ten_approvals_at_once_exactly_one_counts(desk: Desk) -> None:
    intent = await desk.intent(note("a", "guard"))

    answers = await asyncio.gather(*(intent.decide(decision_id=f"d{number}") for number in range(10)))

    assert sum(answer.accepted for answer in answers) == 1
    assert desk.count("backstay.decisions") == 1


async def test_between_approve_and_deny_the_denial_stands(desk: Desk) -> None:
    async def race(number: int) -> None:
        intent = await desk.intent(note(f"a{number}", "guard"))
        said = [intent.decide("approve"), intent.decide("deny")]
        await asyncio.gather(*(said if number % 2 else said[::-1]))
        assert await refused(intent.execute(f"a{number}")) is Reason.APPROVAL_MISSING

    await asyncio.gather(*(race(number) for number in range(10)))

    assert desk.count("samples.notes") == 0


async def test_between_a_denial_and_the_step_one_wins_and_the_other_is_told(desk: Desk) -> None:
    async def race(number: int) -> bool:
        intent = await desk.intent(note(f"a{number}", "guard"))
        await intent.decide()

        async def run() -> bool:
            try:
                await intent.execute(f"a{number}")
            except SagaError as error:
                return error.reason is not Reason.APPROVAL_MISSING
            return True

        landed, answer = await asyncio.gather(run(), intent.decide("deny", step_id=f"a{number}"))
        assert answer.accepted is not landed
        return landed

    outcomes = [
        outcome
        for first in range(0, 40, 10)
        for outcome in await asyncio.gather(*(race(number) for number in range(first, first + 10)))
    ]

    assert desk.count("samples.notes") == sum(outcomes)


# --- resolutions ---------------------------------------------------------------------------------------------------


async def interrupted(desk: Desk) -> Desked:
    intent = await desk.intent(note("a"), note("b"))
    await intent.execute("a")
    await intent.park(ParkReason.INTERRUPTED)
    return intent


async def stuck(desk: Desk) -> Desked:
    """A compensation was refused."""
    intent = await desk.intent(note("a"), note("b"))
    await intent.execute("a")
    await intent.execute("b")
    await intent.close(Cause.REFUSED)
    await intent.park(ParkReason.COMPENSATION_REFUSED, "b")
    return intent


async def test_close_shuts_the_way_forward_at_once(desk: Desk) -> None:
    intent = await interrupted(desk)

    answer = await intent.resolve("close")

    assert answer.standing is not None
    assert (answer.standing.phase, answer.standing.cause) == (IntentPhase.CLOSING, Cause.INTERRUPTED)
    assert (intent.row()["phase"], intent.row()["parked_reason"]) == ("CLOSING", None)
    assert await refused(intent.execute("b")) is Reason.SUPERSEDED


async def test_forward_lets_steps_land_again_and_gives_them_time(desk: Desk) -> None:
    intent = await interrupted(desk)
    desk.rows("update backstay.intents set deadline_at = now() - interval '1 hour'")

    answer = await intent.resolve("forward")

    assert answer.standing is not None
    assert answer.standing.phase is IntentPhase.ADMITTED
    assert (await intent.execute("b")).transaction_id is not None


@pytest.mark.parametrize(
    ("verb", "state", "residue"),
    [
        ("retry", "LANDED", None),
        ("done", "COMPENSATED", None),
        ("skip", "COMPENSATED", "not restored: looked at it"),
    ],
)
async def test_a_verb_about_a_step_does_its_part_in_the_database(
    desk: Desk, verb: str, state: str, residue: str | None
) -> None:
    intent = await stuck(desk)

    answer = await intent.resolve(verb, "b")

    row = desk.one("select state, residue from backstay.effects where step_id = 'b' and direction = 'execute'")
    assert (row["state"], row["residue"], answer.residue) == (state, residue, residue)
    assert answer.standing is not None
    assert answer.standing.parked is None


async def test_a_compensation_after_done_or_skip_finds_nothing_to_undo(desk: Desk) -> None:
    intent = await stuck(desk)
    await intent.resolve("skip", "b")

    done = await intent.compensate("b")

    assert (done.undone, done.residue) == (False, "not restored: looked at it")
    assert desk.behaviour.calls["undo:b"] == 0


async def test_the_same_resolution_again_is_accepted_and_changes_nothing(desk: Desk) -> None:
    intent = await stuck(desk)
    await intent.resolve("retry", "b")
    await intent.park(ParkReason.COMPENSATION_REFUSED, "b")

    again = await intent.resolve("retry", "b")

    assert again.accepted
    assert again.standing is not None
    assert again.standing.parked is ParkReason.COMPENSATION_REFUSED
    assert desk.count("backstay.resolutions") == 1


async def test_a_resolution_id_is_good_for_one_resolution_of_one_intent(desk: Desk) -> None:
    one, other = await interrupted(desk), await interrupted(desk)
    await one.resolve("close")

    assert reason(await other.resolve("close")) is Reason.RESOLUTION_INVALID
    assert other.row()["parked_reason"] == "INTERRUPTED"


@pytest.mark.parametrize(
    ("verb", "step_id"), [("retry", "b"), ("skip", "a"), ("done", None), ("retry", None), ("close", "a")]
)
async def test_a_verb_that_does_not_fit_is_refused_with_those_that_do(
    desk: Desk, verb: str, step_id: str | None
) -> None:
    intent = await interrupted(desk)

    answer = await intent.resolve(verb, step_id)

    assert reason(answer) is Reason.RESOLUTION_INVALID
    assert answer.error is not None
    assert answer.error.details == {"offered": {"": ["close", "forward"]}}
    assert intent.row()["parked_reason"] == "INTERRUPTED"


@pytest.mark.parametrize("verb", ["skip", "done"])
async def test_skip_and_done_need_evidence(desk: Desk, verb: str) -> None:
    intent = await stuck(desk)

    assert reason(await intent.resolve(verb, "b", evidence="  ")) is Reason.RESOLUTION_INVALID
    assert (await intent.resolve(verb, "b")).accepted


async def test_past_the_pivot_close_is_not_offered(desk: Desk) -> None:
    intent = await desk.intent(note("a", "seal"))
    await intent.execute("a")
    await intent.park(ParkReason.INTERRUPTED)

    answer = await intent.resolve("close")

    assert answer.error is not None
    assert answer.error.details == {"offered": {"": ["forward"]}}


async def test_while_closing_forward_is_not_offered(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    await intent.close()
    await intent.park(ParkReason.INTERRUPTED)

    answer = await intent.resolve("forward")

    assert answer.error is not None
    assert answer.error.details == {"offered": {"": ["close"]}}


async def test_a_resolution_of_an_intent_that_is_not_parked_says_how_it_stands(desk: Desk) -> None:
    intent = await desk.intent(note("a"))

    answer = await intent.resolve("close")

    assert reason(answer) is Reason.RESOLUTION_INVALID
    assert answer.standing is not None
    assert (answer.standing.phase, answer.standing.parked) == (IntentPhase.ADMITTED, None)


async def test_a_stale_run_takes_no_resolution(desk: Desk) -> None:
    intent = await interrupted(desk)

    assert await refused(intent.seen_by(epoch=2).resolve("close")) is Reason.RUN_STALE


async def test_who_resolved_it_and_why_is_in_the_audit_log(desk: Desk) -> None:
    intent = await stuck(desk)

    await intent.resolve("skip", "b")

    row = desk.one("select actor, step_id, result from backstay.audit_log where kind = 'resolution'")
    assert (row["actor"], row["step_id"]) == ("operator", "b")
    assert "looked at it" in row["result"]


async def test_of_two_resolutions_at_once_one_counts(desk: Desk) -> None:
    intent = await interrupted(desk)

    answers = await asyncio.gather(
        intent.resolve("close", resolution_id="r1"), intent.resolve("forward", resolution_id="r2")
    )

    assert sum(answer.accepted for answer in answers) == 1
    assert desk.count("backstay.resolutions") == 1

"""Late steps in the reducer: graded when their sources are done, asked about, and nothing is written meanwhile."""

from contracts.base import JsonObject
from contracts.envelope import Cause, StepState
from contracts.errors import SagaError
from contracts.plan import Plan, PlannedStep
from contracts.reasons import Reason
from contracts.saga import Ask, Closed, DecisionAnswer, EffectSeen, GradeAnswer, Graded, IntentPhase
from contracts.tool import Dispatch, Duty, SideEffect
from tests.support.plans import admitted, landed, plan, step
from workflows import commands as do
from workflows import events as on
from workflows.details import markdown
from workflows.reducer import advance, begin
from workflows.state import Stage, State

DIGEST = "d" * 64


def reading(step_id: str, *needs: str) -> PlannedStep:
    return step(step_id, needs=needs, effect=SideEffect.READ_ONLY)


def late(step_id: str, source: str, *needs: str) -> PlannedStep:
    made = step(step_id, needs=(*needs, source), arguments={"amount_cents": {"$from": f"{source}.cents"}})
    return made.model_copy(update={"late": ("amount_cents",)})


def graded(step_id: str, *, asks: bool) -> on.StepGraded:
    duty = Duty.ONE if asks else Duty.NONE
    grade = Graded(
        step_id=step_id, level=4, duty=duty, because=("large",), arguments={"amount_cents": 5}, digest=DIGEST
    )
    ask = Ask(undecided=(step_id,), expires_in_seconds=60.0, expires_at="soon", late=(grade,)) if asks else Ask()
    return on.StepGraded(step_id, answer=GradeAnswer(graded=grade, ask=ask))


def run(made: Plan, *events: on.Event) -> tuple[State, tuple[do.Command, ...]]:
    state, commands = begin()
    for event in (on.Admitted(admitted(made)), *events):
        state, commands = advance(state, event)
    return state, commands


def read(step_id: str, output: JsonObject | None = None) -> on.StepLanded:
    return on.StepLanded(landed(step_id, output=output or {"cents": 5}))


def told(commands: tuple[do.Command, ...]) -> list[str]:
    return [f"{type(each).__name__} {getattr(each, 'step_id', '')}".strip() for each in commands]


def test_a_late_step_is_graded_when_its_source_is_done_and_runs_when_nobody_is_asked() -> None:
    made = plan(reading("r"), late("pay", "r"))

    assert told(run(made)[1]) == ["Execute r"]
    assert told(run(made, read("r"))[1]) == ["Grade pay"]
    assert told(run(made, read("r"), graded("pay", asks=False))[1]) == ["Execute pay"]


def test_what_only_has_to_be_read_is_read_and_graded_before_anything_is_written() -> None:
    made = plan(reading("r"), step("beside"), late("pay", "r", "beside"))

    assert told(run(made)[1]) == ["Execute r"]
    assert told(run(made, read("r"))[1]) == ["Grade pay"]
    assert told(run(made, read("r"), graded("pay", asks=False))[1]) == ["Execute beside"]


def test_a_late_step_that_needs_a_write_to_be_known_holds_nothing_up_before_that_write() -> None:
    made = plan(step("make"), step("beside"), late("pay", "make"))

    state, commands = run(made)
    assert told(commands) == ["Execute make", "Execute beside"]

    state, commands = advance(state, on.StepLanded(landed("make", 1, {"cents": 5})))
    assert told(commands) == ["Grade pay"]
    state, commands = advance(state, graded("pay", asks=True))
    assert (told(commands), state.stage) == ([], Stage.FORWARD)  # what runs is waited for

    state, commands = advance(state, on.StepLanded(landed("beside", 2)))
    assert (told(commands), state.stage) == (["Ask"], Stage.AWAITING_APPROVAL)
    assert state.steps["pay"].state is StepState.AWAITING_APPROVAL


def test_while_people_are_asked_nothing_is_written_and_reading_goes_on() -> None:
    made = plan(reading("r"), reading("s"), late("pay", "r"), late("more", "s"), step("beside"))

    state, _ = run(made, read("r"), graded("pay", asks=True))
    state, commands = advance(state, read("s"))

    assert told(commands) == ["Grade more"]
    state, commands = advance(state, graded("more", asks=False))
    assert (told(commands), state.stage) == (["Ask"], Stage.AWAITING_APPROVAL)


def test_an_approval_that_comes_while_others_run_lets_the_step_go() -> None:
    made = plan(step("make"), step("beside"), late("pay", "make"))
    state, _ = run(made, on.StepLanded(landed("make", 1, {"cents": 5})), graded("pay", asks=True))

    _, commands = advance(state, on.DecisionAdmitted(DecisionAnswer(accepted=True, ask=Ask(approved=("pay",)))))

    assert told(commands) == ["Execute pay"]


def test_a_denied_late_step_turns_back_over_what_landed() -> None:
    made = plan(step("make"), late("pay", "make"))
    state, _ = run(made, on.StepLanded(landed("make", 1, {"cents": 5})), graded("pay", asks=True))

    _, (command,) = advance(state, on.DecisionAdmitted(DecisionAnswer(accepted=True, ask=Ask(denied=("pay",)))))

    assert command == do.CloseIntent(cause=Cause.DENIED)


def test_a_late_step_nobody_decides_about_in_time_turns_back() -> None:
    made = plan(step("make"), late("pay", "make"))
    state, _ = run(made, on.StepLanded(landed("make", 1, {"cents": 5})), graded("pay", asks=True))

    _, (command,) = advance(state, on.ApprovalDue())

    assert command == do.CloseIntent(cause=Cause.EXPIRED)


def test_a_refused_grade_turns_back_also_of_a_step_that_would_be_sent_somewhere() -> None:
    made = plan(step("make"), late("pay", "make").model_copy(update={"dispatch": Dispatch.REMOTE}))
    refused = SagaError(Reason.NOT_OWNER, "not yours").info

    state, (command,) = run(made, on.StepLanded(landed("make", 1, {"cents": 5})), on.StepGraded("pay", error=refused))

    assert command == do.CloseIntent(cause=Cause.REFUSED, error=refused)
    assert state.steps["pay"].state is StepState.REFUSED


def test_a_grade_that_another_run_must_not_have_asks_the_database_how_it_stands() -> None:
    made = plan(step("make"), late("pay", "make"))
    stale = SagaError(Reason.RUN_STALE, "another run").info

    _, commands = run(made, on.StepLanded(landed("make", 1, {"cents": 5})), on.StepGraded("pay", error=stale))

    assert told(commands) == ["Admit"]


def test_a_run_that_adopts_an_intent_asks_what_was_asked_and_grades_again_before_it_goes_on() -> None:
    made = plan(step("make"), late("pay", "make"))
    grade = graded("pay", asks=True)
    assert grade.answer is not None
    state, commands = advance(begin()[0], on.Admitted(admitted(made).model_copy(update={"ask": grade.answer.ask})))
    assert told(commands) == ["Ask"]
    assert DIGEST in markdown(state)

    state, commands = advance(
        state,
        on.DecisionAdmitted(DecisionAnswer(accepted=True, ask=Ask(approved=("pay",), late=grade.answer.ask.late))),
    )
    assert told(commands) == ["Execute make"]
    state, commands = advance(state, on.StepLanded(landed("make", 1, {"cents": 5})))
    assert told(commands) == ["Grade pay"]
    _, commands = advance(
        state, on.StepGraded("pay", answer=GradeAnswer(graded=grade.answer.graded, ask=Ask(approved=("pay",))))
    )
    assert told(commands) == ["Execute pay"]


def test_what_a_late_step_touches_is_not_known_so_it_is_undone_before_whatever_landed_earlier() -> None:
    made = plan(reading("r"), late("pay", "r"), step("other"))
    state, _ = run(
        made,
        read("r"),
        graded("pay", asks=False),
        on.StepLanded(landed("other", 1)),
        on.StepLanded(landed("pay", 2)),
    )
    assert state.stage is Stage.SETTLING

    closing = admitted(made).model_copy(update={"phase": IntentPhase.CLOSING, "cause": Cause.INTERRUPTED})
    effects = (
        EffectSeen(step_id="other", state="LANDED", transaction_id=1),
        EffectSeen(step_id="pay", state="LANDED", transaction_id=2),
    )
    _, commands = advance(state, on.IntentClosed(Closed(standing=closing, effects=effects)))

    assert told(commands) == ["Compensate pay"]


def test_the_card_shows_a_late_step_with_the_digest_and_the_arguments_that_it_stands_for() -> None:
    made = plan(reading("r"), late("pay", "r"))

    state, _ = run(made, read("r"), graded("pay", asks=True))

    card = markdown(state)
    assert f'"plan_digest": "{DIGEST}"' in card
    assert '"amount_cents": 5' in card
    assert f'"plan_digest": "{made.digest}"' not in card


def test_a_grade_is_asked_for_once_while_its_answer_is_awaited() -> None:
    made = plan(reading("r"), reading("s"), late("pay", "r"), late("more", "s"))

    state, commands = run(made, read("r"))
    assert told(commands) == ["Grade pay"]
    assert state.running() == ("s", "pay")

    state, commands = advance(state, read("s"))
    assert told(commands) == ["Grade more"]


def test_what_one_grade_said_about_late_steps_is_not_forgotten_by_the_next() -> None:
    made = plan(reading("r"), reading("s"), late("pay", "r"), late("more", "s"))

    state, _ = run(made, read("r"), read("s"), graded("pay", asks=True), graded("more", asks=True))

    assert [grade.step_id for grade in state.ask.late] == ["pay", "more"]

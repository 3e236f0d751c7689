"""The real reducer behind small numbers: each state once, each step of it computed once.

Two states with one key go on alike: what the reducer only shows to people, and what can make no difference any more,
is left out of it.
"""

from dataclasses import replace
from typing import Any

from contracts.envelope import Cause
from contracts.errors import SagaError
from contracts.fallback import FENCED_FOR
from contracts.keys import execute_key
from contracts.plan import Plan
from contracts.reasons import Reason
from contracts.saga import (
    Ask,
    Cancellation,
    Closed,
    CompensateResult,
    DecisionAnswer,
    EffectSeen,
    Resolution,
    ResolutionAnswer,
    Sighting,
    Standing,
    StepResult,
)
from tests.model.rows import Answer, Flight
from workflows import commands as do
from workflows import events as on
from workflows import reducer
from workflows.state import Stage, State

CANCEL: Answer = ("cancel",)
DUE: Answer = ("due",)
Key = tuple[object, ...]


def key_of(state: State) -> Key:
    """All that can make a difference to what the reducer does next."""
    if state.stage is Stage.FINISHED:
        return (state.stage, state.report.outcome if state.report else None)
    return (
        state.stage,
        state.cause,
        state.cancellation is not None,
        state.past_pivot,
        state.parked,
        state.stale,
        state.epoch,
        state.plan is not None,
        state.ask.undecided,
        state.ask.denied,
        *(
            (
                step.state,
                step.transaction_id,
                (step.output or {}).get("value"),
                step.error is not None and step.error.code is not Reason.OUTCOME_UNKNOWN,
                step.is_looking,
                step.is_over,
                step.looked_closing,
                step.falls_back,
            )
            for step in state.steps.values()
        ),
    )


class Saga:
    """The reducer for one plan, memoised. States are numbers; `self.states[number]` is the state itself."""

    def __init__(self, plan: Plan) -> None:
        """Begin with nothing known."""
        self.plan = plan
        self.gated = frozenset(step.step_id for step in plan.gated_steps)
        self.states: list[State] = []
        self._numbers: dict[Key, int] = {}
        self._steps: dict[tuple[int, Answer, bool], tuple[int, tuple[do.Command, ...]]] = {}
        self._aged: dict[int, int] = {}

    def number(self, state: State) -> int:
        """The number of a state."""
        number = self._numbers.setdefault(key_of(state), len(self.states))
        if number == len(self.states):
            self.states.append(state)
        return number

    def begin(self) -> tuple[int, tuple[do.Command, ...]]:
        """The first state and its command."""
        state, commands = reducer.begin()
        return self.number(state), commands

    def advance(self, number: int, answer: Answer, *, valid: bool = True) -> tuple[int, tuple[do.Command, ...]]:
        """Take what an activity said, to a claim that is `valid` or stale by now."""
        known = self._steps.get((number, answer, valid))
        if known is None:
            state, commands = reducer.advance(self.states[number], self.event(answer, valid=valid))
            known = self._steps[number, answer, valid] = self.number(state), commands
        return known

    def aged(self, number: int) -> int:
        """The same memory once its claim is stale."""
        if number not in self._aged:
            self._aged[number] = self.number(replace(self.states[number], epoch=0))
        return self._aged[number]

    def flight(self, command: do.Command, number: int) -> Flight:  # noqa: C901, PLR0911 - one for each command
        """The activity of a command. A new command of the reducer gets its line here."""
        valid = self.states[number].epoch == 1
        match command:
            case do.Admit():
                return Flight("admit", valid=False)
            case do.Ask():
                return Flight("ask", valid=False)
            case do.Execute(step_id, arguments):
                return Flight("execute", step_id, str(arguments.get("value", "")), valid)
            case do.Lookup(step_id, _, closing):
                return Flight("look up", step_id, "closing" if closing else "", valid)
            case do.CloseIntent(cause):
                return Flight("close", "", cause.value, valid)
            case do.Compensate(step_id):
                return Flight("compensate", step_id, "", valid)
            case do.Settle():
                return Flight("settle", valid=valid)
            case do.Park(reason, detail):
                stuck = ",".join(step["step_id"] for step in detail.get("steps", []))
                return Flight("park", stuck, reason.value, valid)
            case do.Grade():
                raise AssertionError("no step of the model is graded late")
            case do.AwaitStep():
                raise AssertionError("no plan of the model is open")
            case do.Finish():
                raise AssertionError("a saga's end is no activity")

    # --- answers as events ------------------------------------------------------------------------------------------

    def event(self, answer: Answer, *, valid: bool = True) -> on.Event:  # noqa: C901, PLR0911, PLR0912 - one for each answer
        """The event of an answer. A new answer gets its line here."""
        word: Any
        facts: Any
        word, *facts = answer
        match word:
            case "standing":
                return on.Admitted(self._standing(answer, valid=valid))
            case "landed":
                return on.StepLanded(self._result(*facts))
            case "refused":
                step_id, reason, *fallback = facts
                details = {FENCED_FOR: fallback[0]} if fallback else {}
                return on.StepRefused(step_id, SagaError(reason, "refused", details=details).info)
            case "sighted":
                return on.StepSighted(self._sighting(*facts))
            case "closed":
                return on.IntentClosed(self._closed(*facts, valid=valid))
            case "undone":
                done = CompensateResult(step_id=facts[0], step_key="key", transaction_id=99, undone=True)
                return on.StepCompensated(done)
            case "not undone":
                step_id, reason = facts
                return on.CompensationRefused(step_id, SagaError(reason, "refused").info)
            case "stale":
                return on.RunStale()
            case "doubted":
                return on.RunDoubted()
            case "decided":
                accepted, (approved, denied, expired) = facts
                error = None if accepted else SagaError(Reason.DECISION_LATE, "late").info
                ask = self._ask(approved, denied, expired=expired)
                return on.DecisionAdmitted(DecisionAnswer(accepted=accepted, error=error, ask=ask))
            case "resolved":
                accepted, standing = facts
                said = Resolution(resolution_id="r1", verb="forward", operator="operator", evidence="seen")
                how = self._standing(standing, valid=valid)
                return on.Resolved(said, ResolutionAnswer(accepted=accepted, standing=how))
            case "cancel":
                return on.CancelRequested(Cancellation(reason="enough", requested_by="tester"))
            case "due":
                return on.ApprovalDue()
            case _:
                raise AssertionError(answer)

    def _ask(self, approved: frozenset[str], denied: frozenset[str], *, expired: bool) -> Ask:
        if not self.gated:
            return Ask()
        return Ask(
            undecided=tuple(sorted(self.gated - approved - denied)),
            approved=tuple(sorted(approved - denied)),
            denied=tuple(sorted(denied)),
            expires_in_seconds=0.0 if expired else 60.0,
        )

    def _standing(self, answer: Answer, *, valid: bool) -> Standing:
        facts: Any = answer[1:]
        phase, cause, parked, stuck, approved, denied, expired, duplicate = facts
        given: Any = {
            "phase": phase,
            "cause": cause,
            "parked": parked,
            "parked_detail": {"steps": [{"step_id": step_id} for step_id in stuck]} if parked else None,
            "ask": self._ask(approved, denied, expired=bool(expired)),
            "duplicate": duplicate,
        }
        return Standing(intent_id=self.plan.intent_id, plan=self.plan, plan_digest="0" * 64, epoch=int(valid), **given)

    def _result(self, step_id: str, number: int | None, read: str) -> StepResult:
        return StepResult(
            step_id=step_id,
            step_key=execute_key(self.plan.intent_key, step_id),
            transaction_id=number,
            applied_args={},
            output={"value": read},
        )

    def _sighting(self, step_id: str, state: Any, number: int | None, resend: bool, over: bool) -> Sighting:  # noqa: ANN401, FBT001 - facts of an answer
        result = self._result(step_id, number, "") if state == "LANDED" else None
        return Sighting(step_id=step_id, state=state, result=result, may_resend=resend, over=over)

    def _closed(self, standing: Answer, seen: Any, unknown: Any, past: bool, unsure: bool, *, valid: bool) -> Closed:  # noqa: ANN401, FBT001 - as above
        effects = tuple(EffectSeen(step_id=one, state=state, transaction_id=number) for one, state, number in seen)
        how = self._standing(standing, valid=valid)
        due = 60.0 if how.cause is Cause.NONE and not seen and not past and not unsure else None
        return Closed(
            standing=how, effects=effects, unknown=unknown, past_pivot=past, pivot_unknown=unsure, due_in_seconds=due
        )

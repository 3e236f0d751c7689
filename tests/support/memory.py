"""A reducer under test: one saga's memory, driven by hand; and what its commands are asked for."""

from typing import Any

from contracts.envelope import Cause, IntentReport, Outcome, StepState
from contracts.errors import SagaError
from contracts.plan import Plan
from contracts.reasons import Reason
from contracts.saga import (
    Ask,
    Cancellation,
    Closed,
    CompensateResult,
    DecisionAnswer,
    EffectSeen,
    IntentPhase,
    ParkReason,
    Resolution,
    ResolutionAnswer,
    Standing,
)
from tests.support.plans import admitted, landed
from workflows import commands as do
from workflows import events as on
from workflows.reducer import advance, begin

CANCEL = on.CancelRequested(Cancellation(reason="enough", requested_by="somebody"))


class Saga:
    """A reducer under test: takes events, keeps the state, returns the commands."""

    def __init__(self, made: Plan) -> None:
        self.plan = made
        self.state, self.first = begin()

    def take(self, event: on.Event) -> tuple[do.Command, ...]:
        self.state, commands = advance(self.state, event)
        return commands

    def admit(self, **changes: Any) -> tuple[do.Command, ...]:  # noqa: ANN401 - any field of a standing
        return self.take(on.Admitted(self.standing(**changes)))

    def standing(self, **changes: Any) -> Standing:  # noqa: ANN401 - as above
        return admitted(self.plan).model_copy(update=changes)

    def land(self, *steps: tuple[str, int]) -> tuple[do.Command, ...]:
        commands: tuple[do.Command, ...] = ()
        for step_id, number in steps:
            commands = self.take(on.StepLanded(landed(step_id, number)))
        return commands

    def refuse(self, step_id: str, reason: Reason = Reason.WRONG_STATE) -> tuple[do.Command, ...]:
        return self.take(on.StepRefused(step_id, SagaError(reason, "no").info))

    def close(self, *rows: tuple[str, str, int], cause: Cause = Cause.REFUSED) -> tuple[do.Command, ...]:
        effects = tuple(
            EffectSeen.model_validate({"step_id": step_id, "state": state, "transaction_id": number})
            for step_id, state, number in rows
        )
        standing = self.standing(phase=IntentPhase.CLOSING, cause=cause, ask=Ask())
        return self.take(on.IntentClosed(Closed(standing=standing, effects=effects)))

    def undo(self, step_id: str, residue: str | None = None) -> tuple[do.Command, ...]:
        done = CompensateResult(step_id=step_id, step_key="k", transaction_id=9, undone=True, residue=residue)
        return self.take(on.StepCompensated(done))

    def refuse_undo(self, step_id: str, reason: Reason = Reason.WRONG_STATE) -> tuple[do.Command, ...]:
        return self.take(on.CompensationRefused(step_id, SagaError(reason, "cannot").info))

    def decide(self, *, accepted: bool = True, **ask: Any) -> tuple[do.Command, ...]:  # noqa: ANN401 - as above
        return self.take(on.DecisionAdmitted(DecisionAnswer(accepted=accepted, ask=Ask(**ask))))

    def resolve(self, verb: str, step_id: str | None = None, **changes: Any) -> tuple[do.Command, ...]:  # noqa: ANN401
        said = Resolution.model_validate(
            {"resolution_id": "r1", "verb": verb, "operator": "op", "step_id": step_id, "evidence": "seen"}
        )
        return self.take(on.Resolved(said, ResolutionAnswer(accepted=True, standing=self.standing(**changes))))

    def park(self, reason: ParkReason, **changes: Any) -> tuple[do.Command, ...]:  # noqa: ANN401 - as above
        return self.admit(parked=reason, **changes)

    def step(self, step_id: str) -> StepState:
        return self.state.steps[step_id].state


def executed(commands: tuple[do.Command, ...]) -> list[str]:
    return [command.step_id for command in commands if isinstance(command, do.Execute)]


def compensated(commands: tuple[do.Command, ...]) -> list[str]:
    return [command.step_id for command in commands if isinstance(command, do.Compensate)]


def only(commands: tuple[do.Command, ...]) -> do.Command:
    (command,) = commands
    return command


def close_of(commands: tuple[do.Command, ...]) -> do.CloseIntent:
    command = only(commands)
    assert isinstance(command, do.CloseIntent)
    return command


def finish_of(commands: tuple[do.Command, ...]) -> do.Finish:
    command = only(commands)
    assert isinstance(command, do.Finish)
    return command


def report(outcome: Outcome, cause: Cause = Cause.NONE) -> IntentReport:
    return IntentReport(outcome=outcome, cause=cause)

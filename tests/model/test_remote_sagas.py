"""All ways of small sagas whose steps are sent somewhere: the courier's truth and the tables agree at every end.

A second, smaller exploration beside `exploration.py`: here the third store is the downstream. A request may be lost,
land now or later within its window; a lookup may fail, tell the truth, or be out of patience; people may cancel at any
point and say to a parked step what is true of it. Every activity is one atomic act; a crash between the attempt and
its outcome is the outcome `lost`. Real crashes are in tests/faults/test_remote_killed.py.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from contracts.envelope import Cause
from contracts.errors import SagaError
from contracts.plan import Plan
from contracts.reasons import Reason
from contracts.saga import (
    Ask,
    Cancellation,
    Closed,
    CompensateResult,
    EffectSeen,
    IntentPhase,
    ParkReason,
    Resolution,
    ResolutionAnswer,
    Sighting,
    Standing,
)
from contracts.tool import Dispatch, SideEffect
from tests.support.plans import KEY, admitted, landed, plan, step
from workflows import commands as do
from workflows import events as on
from workflows.reducer import advance, begin
from workflows.state import Stage, State

CANCEL: Final = on.CancelRequested(Cancellation(reason="enough", requested_by="somebody"))
SENDS_MAX: Final = 2
STATES_MAX: Final = 150_000


@dataclass(frozen=True)
class Sent:
    """One step in all three stores. `truth` is the courier's: no, flying (may still land), yes, back, fenced."""

    attempt: str = ""
    truth: str = "no"
    effect: str = ""
    sends: int = 0


@dataclass(frozen=True)
class World:
    """Everything at one moment; `flights` are commands that have not answered."""

    state: State
    flights: tuple[do.Command, ...]
    steps: tuple[Sent, ...]
    phase: IntentPhase = IntentPhase.ADMITTED
    parked: ParkReason | None = None
    stuck: tuple[str, ...] = ()

    def key(self) -> str:
        """Two worlds with one key go on alike."""
        return repr((self.state.stage, self.state.cause, self.state.past_pivot, self.state.cancellation is None,
                     self.state.parked, [(s.state, s.is_looking, s.is_over, s.looked_closing, s.transaction_id)
                                         for s in self.state.steps.values()],
                     sorted(map(repr, self.flights)), self.steps, self.phase, self.parked, self.stuck))  # fmt: skip


class Violation(AssertionError):  # noqa: N818 - as in `exploration.py`
    """A promise that did not hold."""


class Exploration:
    """Every way of one plan."""

    def __init__(self, made: Plan, *, knows_keys: bool) -> None:
        self.plan = made
        self.knows_keys = knows_keys
        self.index = {one.step_id: number for number, one in enumerate(made.steps)}

    def run(self) -> tuple[int, int]:
        """Explore; return how many worlds and how many ends there are. Raises Violation."""
        state, commands = begin()
        first = self._emit(World(state, (), tuple(Sent() for _ in self.plan.steps)), commands)
        seen = {first.key(): [""]}
        before: dict[str, set[str]] = {first.key(): set()}
        queue, ends = deque([first]), set[str]()
        while queue:
            world = queue.popleft()
            here, found = world.key(), False
            for label, after in self._next(world, seen[here]):
                found = True
                there = after.key()
                before.setdefault(there, set()).add(here)
                if there not in seen:
                    seen[there] = [*seen[here], label]
                    queue.append(after)
            if world.state.stage is Stage.FINISHED:
                ends.add(here)
            elif not found:
                raise Violation(f"stuck in {world.state.stage}: {seen[here]}")
            assert len(seen) < STATES_MAX
        self._check_reach(seen, before, ends)
        return len(seen), len(ends)

    def _check_reach(self, seen: dict[str, list[str]], before: dict[str, set[str]], ends: set[str]) -> None:
        reaches, queue = set(ends), deque(ends)
        while queue:
            for earlier in before[queue.popleft()] - reaches:
                reaches.add(earlier)
                queue.append(earlier)
        if lost := seen.keys() - reaches:
            raise Violation(f"no end after {seen[min(lost, key=lambda key: len(seen[key]))]}")

    # --- what may happen ---------------------------------------------------------------------------------------

    def _next(self, world: World, path: list[str]) -> Iterator[tuple[str, World]]:
        state = world.state
        if state.stage is Stage.FINISHED:
            return
        for step_id, number in self.index.items():
            if world.steps[number].truth == "flying":
                yield f"{step_id} lands late", self._with(world, step_id, truth="yes")
                yield f"{step_id} is lost for good", self._with(world, step_id, truth="no")
        for flight in world.flights:
            rest = replace(world, flights=tuple(other for other in world.flights if other is not flight))
            for label, after, event in self._act(rest, flight):
                yield f"{label}", self._take(after, event, [*path, label])
        if state.cancellation is None and state.stage not in (Stage.PARKED, Stage.PARKING):
            yield "cancel", self._take(world, CANCEL, path)
        if state.stage is Stage.PARKED:
            yield from self._operator(world, path)

    def _operator(self, world: World, path: list[str]) -> Iterator[tuple[str, World]]:
        for step_id in world.stuck:
            truth = world.steps[self.index[step_id]].truth
            if world.parked is ParkReason.STUCK_AFTER_PIVOT:
                yield "retry", self._resolved(self._with(world, step_id, attempt="NOT_LANDED"), "retry", path)
            if world.parked is not ParkReason.OUTCOME_UNKNOWN:
                continue
            yield f"retry {step_id}", self._resolved(world, "retry", path)
            if truth == "yes":
                done = self._with(world, step_id, attempt="LANDED", effect="LANDED")
                yield f"done {step_id}", self._resolved(done, "done", path)
            if truth in ("no", "fenced") and not self._pivot_landed(world) and not self._pivots(world) - {step_id}:
                skipped = self._with(world, step_id, attempt="FENCED", effect="TOMBSTONE")
                skipped = replace(skipped, phase=IntentPhase.CLOSING)
                yield f"skip {step_id}", self._resolved(skipped, "skip", path)

    def _resolved(self, world: World, verb: Any, path: list[str]) -> World:  # noqa: ANN401 - a word of the model
        world = replace(world, parked=None, stuck=())
        said = Resolution(resolution_id="r", verb=verb, operator="op", evidence="seen")
        answer = ResolutionAnswer(accepted=True, standing=self._standing(world))
        return self._take(world, on.Resolved(said, answer), [*path, verb])

    # --- activities ----------------------------------------------------------------------------------------------

    def _act(self, world: World, flight: do.Command) -> Iterator[tuple[str, World, on.Event]]:
        match flight:
            case do.Admit():
                standing = self._standing(world)
                yield "admit", world, on.Admitted(standing.model_copy(update={"plan": self.plan}))
            case do.Execute(step_id):
                yield from self._execute(world, step_id)
            case do.Lookup(step_id, _, closing):
                for label, after, seen in self._look(world, step_id, closing=closing):
                    yield f"look {step_id}: {label}", after, on.StepSighted(seen)
            case do.CloseIntent(cause):
                yield "close", *self._close(world, cause)
            case do.Compensate(step_id):
                yield f"undo {step_id}", *self._undo(world, step_id)
            case do.Settle():
                after = self._settle(world)
                yield "settle", after, on.Admitted(self._standing(after))
            case do.Park(reason, detail):
                stuck = tuple(one["step_id"] for one in detail.get("steps", []))
                after = replace(world, parked=reason, stuck=stuck)
                yield f"park {reason}", after, on.Admitted(self._standing(after))
            case _:
                raise AssertionError(flight)

    def _execute(self, world: World, step_id: str) -> Iterator[tuple[str, World, on.Event]]:
        sent = world.steps[self.index[step_id]]
        lands = on.StepLanded(landed(step_id, self.index[step_id] + 1))
        lost = on.StepRefused(step_id, SagaError(Reason.OUTCOME_UNKNOWN, "lost").info)
        if sent.effect == "LANDED":
            yield f"{step_id} again", world, lands
            return
        if sent.effect or sent.attempt == "FENCED" or world.phase is not IntentPhase.ADMITTED:
            yield f"{step_id} superseded", world, on.StepRefused(step_id, SagaError(Reason.SUPERSEDED, "no").info)
            return
        is_open = sent.attempt in ("SENT", "UNKNOWN")
        if is_open and sent.truth == "yes":
            yield f"{step_id} found", self._with(world, step_id, attempt="LANDED", effect="LANDED"), lands
        if is_open and not (self.knows_keys and sent.sends < SENDS_MAX):
            yield f"{step_id} still open", world, lost
            return
        sends = min(sent.sends + 1, SENDS_MAX)
        landing = self._with(world, step_id, attempt="LANDED", effect="LANDED", truth="yes", sends=sends)
        yield f"{step_id} lands", landing, lands
        for truth in ("yes",) if sent.truth == "yes" else ("flying", "yes"):
            unsure = self._with(world, step_id, attempt="SENT", truth=truth, sends=sends)
            yield f"{step_id} is lost, {truth}", unsure, lost
        if not is_open and self.plan.by_id[step_id].may_refuse:
            refused = self._with(world, step_id, attempt="REFUSED", sends=sends)
            yield f"{step_id} refuses", refused, on.StepRefused(step_id, SagaError(Reason.WRONG_STATE, "no").info)

    def _look(self, world: World, step_id: str, *, closing: bool) -> Iterator[tuple[str, World, Sighting]]:
        sent = world.steps[self.index[step_id]]
        result = landed(step_id, self.index[step_id] + 1)
        if sent.effect == "LANDED":
            yield "known", world, Sighting(step_id=step_id, state="LANDED", result=result)
            return
        forward = world.phase is IntentPhase.ADMITTED and not closing and sent.sends < SENDS_MAX
        if sent.attempt not in ("SENT", "UNKNOWN"):
            resend = sent.attempt == "NOT_LANDED" and forward
            yield "decided", world, Sighting(step_id=step_id, state="NOT_LANDED", may_resend=resend)
            return
        for over in (False, True):
            resend = forward and self.knows_keys and not over
            unsure = self._with(world, step_id, attempt="UNKNOWN")
            yield f"unknown {over}", unsure, Sighting(step_id=step_id, state="UNKNOWN", over=over, may_resend=resend)
        if sent.truth == "yes":
            found = self._with(world, step_id, attempt="LANDED", effect="LANDED")
            yield "landed", found, Sighting(step_id=step_id, state="LANDED", result=result)
        cancels = closing and self.plan.by_id[step_id].cancel_by_key and sent.truth in ("no", "flying")
        if cancels or sent.truth == "no":
            shut = cancels or (closing and world.phase is IntentPhase.CLOSING)
            changes = {"attempt": "FENCED", "effect": "TOMBSTONE"} if shut else {"attempt": "NOT_LANDED"}
            absent = self._with(world, step_id, truth="fenced" if cancels else "no", **changes)
            resend = forward and not shut
            yield "not landed", absent, Sighting(step_id=step_id, state="NOT_LANDED", may_resend=resend)

    def _close(self, world: World, cause: Cause) -> tuple[World, on.Event]:
        unknown = self._unknown(world)
        answer: dict[str, Any] = {"effects": self._effects(world), "unknown": unknown}
        if world.phase is IntentPhase.ADMITTED:
            if self._pivot_landed(world):
                answer["past_pivot"] = True
            elif self._pivots(world):
                answer["pivot_unknown"] = True
            else:
                world = replace(world, phase=IntentPhase.CLOSING)
        standing = self._standing(world)
        if world.phase is IntentPhase.CLOSING:
            standing = standing.model_copy(update={"cause": cause})
        return world, on.IntentClosed(Closed(standing=standing, **answer))

    def _undo(self, world: World, step_id: str) -> tuple[World, on.Event]:
        sent = world.steps[self.index[step_id]]
        if (sent.effect, sent.truth) != ("LANDED", "yes") or self.plan.by_id[step_id].is_pivot:
            raise Violation(f"{step_id} is compensated though it is {sent}")
        for other in self.plan.dependents[step_id]:
            if world.steps[self.index[other]].effect == "LANDED" or other in self._unknown(world):
                raise Violation(f"{step_id} is compensated before {other}")
        undone = CompensateResult(step_id=step_id, step_key=KEY, transaction_id=99, undone=True)
        return self._with(world, step_id, effect="COMPENSATED", truth="back"), on.StepCompensated(undone)

    def _settle(self, world: World) -> World:
        if unknown := self._unknown(world):
            return replace(world, parked=ParkReason.OUTCOME_UNKNOWN, stuck=unknown)
        effects = [sent.effect for sent in world.steps]
        if world.phase is IntentPhase.ADMITTED:
            if any(effect != "LANDED" for effect in effects):
                raise Violation(f"settled with {effects}")
            return replace(world, phase=IntentPhase.COMMITTED)
        if "LANDED" in effects:
            raise Violation(f"settled on the way back with {effects}")
        undone = "COMPENSATED" in effects
        return replace(world, phase=IntentPhase.COMPENSATED if undone else IntentPhase.NOT_APPLIED)

    # --- the tables ------------------------------------------------------------------------------------------------

    def _with(self, world: World, step_id: str, **changes: Any) -> World:  # noqa: ANN401 - fields of a step
        steps = list(world.steps)
        steps[self.index[step_id]] = replace(steps[self.index[step_id]], **changes)
        return replace(world, steps=tuple(steps))

    def _unknown(self, world: World) -> tuple[str, ...]:
        pairs = zip(self.index, world.steps, strict=True)
        return tuple(step_id for step_id, sent in pairs if sent.attempt in ("SENT", "UNKNOWN"))

    def _pivots(self, world: World) -> set[str]:
        return {step_id for step_id in self._unknown(world) if self.plan.by_id[step_id].is_pivot}

    def _pivot_landed(self, world: World) -> bool:
        pairs = zip(self.plan.steps, world.steps, strict=True)
        return any(one.is_pivot and sent.effect == "LANDED" for one, sent in pairs)

    def _effects(self, world: World) -> tuple[EffectSeen, ...]:
        return tuple(
            EffectSeen.model_validate({"step_id": step_id, "state": sent.effect, "transaction_id": number})
            for number, (step_id, sent) in enumerate(zip(self.index, world.steps, strict=True), start=1)
            if sent.effect
        )

    def _standing(self, world: World) -> Standing:
        detail = {"steps": [{"step_id": step_id} for step_id in world.stuck]} if world.parked else None
        return admitted(self.plan).model_copy(
            update={"plan": None, "phase": world.phase, "parked": world.parked, "parked_detail": detail, "ask": Ask()}
        )

    # --- the saga --------------------------------------------------------------------------------------------------

    def _take(self, world: World, event: on.Event, path: list[str]) -> World:
        try:
            state, commands = advance(world.state, event)
            return self._emit(replace(world, state=state), commands)
        except (Violation, AssertionError, KeyError) as error:
            raise Violation(f"{error} after {path}") from error

    def _emit(self, world: World, commands: tuple[do.Command, ...]) -> World:
        flights = list(world.flights)
        for command in commands:
            if isinstance(command, do.Finish):
                self._check_end(world)
                continue
            step_id = getattr(command, "step_id", None)
            if step_id is not None and any(getattr(other, "step_id", None) == step_id for other in flights):
                raise Violation(f"{command} beside {flights}")
            if step_id is None and flights:
                raise Violation(f"{command} while {flights}")
            flights.append(command)
        return replace(world, flights=tuple(flights))

    def _check_end(self, world: World) -> None:
        truths = {sent.truth for sent in world.steps}
        wanted = {"yes"} if world.phase is IntentPhase.COMMITTED else {"no", "back", "fenced"}
        if not truths <= wanted:
            raise Violation(f"{world.phase}, but the courier says {world.steps}")


def sent(made: Plan, **changes: Any) -> Plan:  # noqa: ANN401 - fields of every step
    steps = tuple(one.model_copy(update={"dispatch": Dispatch.REMOTE, **changes}) for one in made.steps)
    return made.model_copy(update={"steps": steps})


def chained(*effects: SideEffect) -> Plan:
    """Steps a, b, ... of which what comes after a pivot cannot refuse."""
    names = "abc"[: len(effects)]
    pivot = effects.index(SideEffect.IRREVERSIBLE) if SideEffect.IRREVERSIBLE in effects else len(effects)
    return plan(
        *(
            step(name, needs=names[max(0, number - 1) : number], effect=effect).model_copy(
                update={"may_refuse": number <= pivot}
            )
            for number, (name, effect) in enumerate(zip(names, effects, strict=True))
        )
    )


BACK, PIVOT = SideEffect.REVERSIBLE, SideEffect.IRREVERSIBLE
PLANS: Final = {
    "one": chained(BACK),
    "chain": chained(BACK, BACK),
    "a pivot": chained(PIVOT),
    "before a pivot": chained(BACK, PIVOT),
    "after a pivot": chained(PIVOT, BACK),
    "around a pivot": chained(BACK, PIVOT, BACK),
    "parallel": plan(step("a"), step("b")),
    "beside a pivot": plan(step("a"), step("b", effect=PIVOT)),
    "sharing an object": plan(step("a", resources=("x:1",)), step("b", needs=("a",), resources=("x:1",))),
}


@pytest.mark.parametrize("cancel_by_key", [False, True], ids=["looked up", "cancelled by key"])
@pytest.mark.parametrize("knows_keys", [True, False], ids=["keys are known", "keys are unknown"])
@pytest.mark.parametrize("name", PLANS)
def test_whatever_the_downstream_does_its_truth_and_the_outcome_agree(
    name: str, *, knows_keys: bool, cancel_by_key: bool
) -> None:
    worlds, ends = Exploration(sent(PLANS[name], cancel_by_key=cancel_by_key), knows_keys=knows_keys).run()

    assert worlds > ends > 0

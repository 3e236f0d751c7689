"""The engine's activities in any order on a real PostgreSQL: each agrees with the rules, every invariant always holds.

Hypothesis calls what sagas call: admission, steps, decisions, close, compensations, settle, park, an operator's verbs,
a new run, and all of it again by runs that were ended; meanwhile holds fall due, deadlines pass and kill switches are
thrown. `tests/support/engine_model.py` says before each call what has to come of it.
"""

import asyncio
import os
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import hypothesis.strategies as st
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, event, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from activities.database import Transaction
from activities.packs.ledger import expire_holds
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.saga import Closed, IntentPhase, ParkReason, StepResult
from tests.support.desk import Desk, Desked, at_desk
from tests.support.engine_model import BROKEN, CALLS, KINDS, PIVOT, Hold, Intent, Known
from tests.support.sagas import request

T = TypeVar("T")
numbers = st.integers(0, 99)
FUNDED_CENTS = 100_000_000
INTENTS_MAX = 4
SEED_VARIABLE = "ENGINE_TEST_SEED"


class EngineMachine(RuleBasedStateMachine):
    """Draws calls; each is compared with the rules at once, and then the tables are."""

    url = ""

    def __init__(self) -> None:
        """Sit down at an empty database, on a loop of its own."""
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.desk: Desk = self.run(self.stack.enter_async_context(at_desk(self.url)))
        self.auditor = psycopg.connect(self.url, autocommit=True)
        self.known: list[Known] = []
        self.killed = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for something asynchronous."""
        return self.runner.run(work)

    def teardown(self) -> None:
        """Bring every intent to its end, ask the invariants once more, and leave."""
        try:
            for known in self.known:
                self.bring_to_an_end(known)
            self.invariants_hold()
            assert not any(known.intent.is_open for known in self.known)
        finally:
            self.auditor.close()
            self.run(self.stack.aclose())
            self.runner.close()

    @rule(step=st.sampled_from([name for name, often in CALLS.items() for _ in range(often)]), one=numbers, two=numbers)
    def go(self, step: str, one: int, two: int) -> None:
        """Do one step."""
        if not self.known:  # nothing was switched off before there was something to do
            self.post(one)
        if step in ("post", "sweep", "throw_or_lift_the_switch"):
            getattr(self, step)(one)
        else:
            getattr(self, step)(self.known[one % len(self.known)], two)

    @invariant()
    def tables_agree(self) -> None:
        """Phases, rests, effects and money are what the rules say."""
        phases = self.auditor.execute("select intent_key, phase, parked_reason from backstay.intents").fetchall()
        effects = self.auditor.execute(
            "select intent_key, step_id, state from backstay.effects where direction = 'execute'"
        ).fetchall()
        money = self.auditor.execute(
            "select balance_cents, held_cents from ledger.accounts where account_id = 'A00000001'"
        ).fetchone()

        intents = {known.run.plan.intent_key: known.intent for known in self.known}
        assert set(phases) == {(key, intent.phase, intent.parked) for key, intent in intents.items()}
        assert set(effects) == {(key, *effect) for key, intent in intents.items() for effect in intent.effects.items()}
        taken = sum(intent.taken_cents() for intent in intents.values())
        assert money == (FUNDED_CENTS - taken, sum(intent.held_cents() for intent in intents.values()))

    @invariant()
    def invariants_hold(self) -> None:
        """No query of the invariants finds anything, at any moment."""
        assert self.auditor.execute(BROKEN, prepare=True).fetchall() == []

    def told(self, name: str, work: Awaitable[T], expected: Reason | None) -> T | None:
        """Make a call; it is answered if nothing is expected against it, else refused for just that reason."""

        async def call() -> T | SagaError:
            try:
                return await work
            except SagaError as error:
                return error

        answer = self.run(call())
        reason = answer.reason if isinstance(answer, SagaError) else None
        event(f"{name}: {reason or 'done'}")
        assert reason is expected, f"{name}: {answer}; expected {expected}"
        return None if isinstance(answer, SagaError) else answer

    # --- admission -----------------------------------------------------------------------------------------------

    def post(self, one: int) -> None:
        """Have an intent admitted, unless everything is switched off or there are enough of them."""
        if len(self.known) == INTENTS_MAX:
            return
        kind = list(KINDS)[one % len(KINDS)]
        body, workflow = request(*KINDS[kind]), f"w-{uuid.uuid4().hex}"
        expected = Reason.KILL_SWITCH_ON if self.killed else None
        standing = self.told("post", self.desk.admit(body, workflow=workflow), expected)
        if standing is not None:
            self.known.append(Known(Intent(kind), body, [Desked(self.desk, standing, workflow, "run-1")]))

    def post_again(self, known: Known, _: int) -> None:
        """Have the owner admitted again: it is told how it stands, and nothing else happens."""
        run = known.run
        standing = self.told("post_again", self.desk.admit(known.body, workflow=run.workflow, run=run.run), None)
        assert standing is not None
        told = (standing.phase, standing.parked, standing.epoch, standing.duplicate)
        assert told == (known.intent.phase, known.intent.parked, run.standing.epoch, False)

    def post_elsewhere(self, known: Known, _: int) -> None:
        """Have another workflow ask for the same: a duplicate, which adopts nothing."""
        standing = self.told("post_elsewhere", self.desk.admit(known.body, workflow=f"w-{uuid.uuid4().hex}"), None)
        assert standing is not None
        assert (standing.duplicate, standing.intent_id) == (True, known.run.standing.intent_id)

    def adopt(self, known: Known, _: int) -> None:
        """Start a new run of the workflow: it owns the intent and rests."""
        if not known.intent.is_open:
            return
        run = f"run-{len(known.runs) + 1}"
        standing = self.told("adopt", self.desk.admit(known.body, workflow=known.run.workflow, run=run), None)
        assert standing is not None
        assert standing.epoch == known.run.standing.epoch + 1
        known.runs.append(Desked(self.desk, standing, known.run.workflow, run))
        known.intent.parked, known.intent.stuck = ParkReason.INTERRUPTED, None

    # --- forward ---------------------------------------------------------------------------------------------------

    def ready(self, known: Known, two: int) -> str:
        """Choose a step whose needs have landed once; most often the next one."""
        steps = known.intent.steps
        reached = [number for number in range(len(steps)) if all(needed in known.answers for needed in steps[:number])]
        return steps[reached[-1 - two % len(reached)] if two % 3 == 0 else reached[-1]]

    def arguments(self, known: Known, step_id: str) -> dict[str, Any]:
        """What a step's bindings are filled with."""
        return {"hold_id": known.hold_id} if step_id == "debit" else {}

    def execute(self, known: Known, two: int) -> None:
        """Run a step; a repeat gets the same bytes."""
        step_id = self.ready(known, two)
        expected = known.intent.why_not_execute(step_id, killed=self.killed)
        work = known.run.execute(step_id, **self.arguments(known, step_id))
        if (result := self.told(f"execute {step_id}", work, expected)) is not None:
            self.landed(known, step_id, result)

    def landed(self, known: Known, step_id: str, result: StepResult) -> None:
        """Note what a step answered."""
        known.intent.execute(step_id)
        assert known.answers.setdefault(step_id, result) == result
        if step_id == "freeze":
            known.hold_id = result.output["hold_id"]

    def decide(self, known: Known, two: int) -> None:
        """Approve or deny."""
        verdict = "deny" if two % 4 == 0 else "approve"
        counts = known.intent.may_decide(verdict)
        answer = self.told("decide", known.run.decide(verdict, decision_id=f"d-{uuid.uuid4().hex}"), None)
        assert answer is not None
        assert answer.accepted == counts, answer
        if counts:
            known.intent.decided = verdict

    # --- back ------------------------------------------------------------------------------------------------------

    def close(self, known: Known, _: int) -> None:
        """Shut the way forward."""
        self.closed(known, self.told("close", known.run.close(), None))

    def closed(self, known: Known, answer: Closed | None) -> None:
        """Compare what a close answered."""
        assert answer is not None
        could = known.intent.is_open and known.intent.parked is None and known.intent.phase is IntentPhase.ADMITTED
        assert answer.past_pivot == (could and PIVOT in known.intent.live)
        known.intent.close()
        assert answer.standing.phase is known.intent.phase
        assert [seen.step_id for seen in answer.effects if seen.state == "LANDED"] == known.intent.live

    def compensate(self, known: Known, two: int) -> None:
        """Undo or fence, last step first, as a saga does; or once more what is done."""
        live, steps = known.intent.live, known.intent.steps
        last = steps.index(live[-1]) if live else 0
        self.undo(known, steps[last + two % (len(steps) - last)])

    def undo(self, known: Known, step_id: str) -> None:
        """Undo or fence one step."""
        if step_id == PIVOT and step_id in known.intent.live:
            return
        expected = known.intent.why_not_compensate(step_id)
        result = self.told(f"compensate {step_id}", known.run.compensate(step_id), expected)
        if result is None:
            return
        if known.intent.phase is IntentPhase.CLOSING and known.intent.effects.get(step_id) in (None, "LANDED"):
            known.undone[step_id] = known.intent.compensate(step_id)
        assert result.undone == known.undone.get(step_id, False)

    def settle(self, known: Known, _: int) -> None:
        """End it as the rows say."""
        standing = self.told("settle", known.run.settle(), None)
        known.intent.settle()
        assert standing is not None
        assert (standing.phase, standing.parked) == (known.intent.phase, known.intent.parked)

    def race(self, known: Known, two: int) -> None:
        """Run a step and close at the same moment: it has landed and is listed, or neither."""
        step_id = self.ready(known, two)
        if known.intent.why_not_execute(step_id, killed=self.killed) is not None or step_id in known.intent.effects:
            return

        async def both() -> tuple[StepResult | BaseException, Closed | BaseException]:
            step = known.run.execute(step_id, **self.arguments(known, step_id))
            return await asyncio.gather(step, known.run.close(), return_exceptions=True)

        result, answer = self.run(both())
        assert isinstance(answer, Closed), answer
        event(f"race: {'landed' if isinstance(result, StepResult) else 'superseded'}")
        if isinstance(result, StepResult) and any(seen.step_id == step_id for seen in answer.effects):
            self.landed(known, step_id, result)
            self.closed(known, answer)
        elif isinstance(result, StepResult):  # only where there is no way back can a step land behind a close
            self.closed(known, answer)
            assert answer.past_pivot
            self.landed(known, step_id, result)
        else:
            assert isinstance(result, SagaError), result
            assert result.reason is Reason.SUPERSEDED
            self.closed(known, answer)

    # --- rest --------------------------------------------------------------------------------------------------------

    def park(self, known: Known, two: int) -> None:
        """Put it to rest."""
        reason = (ParkReason.INTERRUPTED, ParkReason.MISMATCH)[two % 2]
        self.told("park", known.run.park(reason), None)
        known.intent.park(reason)

    def get_stuck(self, known: Known, _: int) -> None:
        """Have a compensation refused: its step waits for a person."""
        intent = known.intent
        if intent.phase is IntentPhase.CLOSING and intent.parked is None and intent.live and intent.kind != "money":
            step_id = intent.live[-1]
            name = f"undo:{step_id}"
            self.desk.behaviour.refuse(name)
            self.told("refused compensation", known.run.compensate(step_id), Reason.WRONG_STATE)
            self.desk.behaviour.allow(name)
            self.told("get_stuck", known.run.park(ParkReason.COMPENSATION_REFUSED, step_id), None)
            intent.park(ParkReason.COMPENSATION_REFUSED, step_id)

    def resolve(self, known: Known, two: int) -> None:
        """Say an operator's verb, fitting or not."""
        step_id = known.intent.stuck if two % 4 else known.intent.steps[0]
        verbs = ("close", "forward") if step_id is None else ("done", "retry", "skip")
        self.say(known, verbs[two % len(verbs)], step_id)

    def say(self, known: Known, verb: str, step_id: str | None) -> None:
        """Say a verb about the intent or a step."""
        fits = known.intent.may_resolve(verb, step_id)
        work = known.run.resolve(verb, step_id, resolution_id=f"r-{uuid.uuid4().hex}")
        answer = self.told(f"resolve {verb}", work, None)
        assert answer is not None
        assert answer.accepted == fits, answer
        if fits:
            known.intent.resolve(verb, step_id)

    # --- the world ---------------------------------------------------------------------------------------------------

    def let_a_hold_fall_due(self, known: Known, _: int) -> None:
        """Let the time of a hold be over."""
        if known.intent.hold is Hold.OPEN:
            statement = "update ledger.holds set expires_at = now() - interval '1 second' where hold_id = %s"
            self.auditor.execute(statement, (known.hold_id,))
            known.intent.hold = Hold.OVERDUE

    def sweep(self, _: int) -> None:
        """Free what is overdue."""
        overdue = [known.intent for known in self.known if known.intent.hold is Hold.OVERDUE]

        async def work(transaction: Transaction) -> int:
            return await expire_holds(transaction, 1000)

        assert self.run(self.desk.database.run(work)) == len(overdue)
        for intent in overdue:
            intent.hold = Hold.EXPIRED

    def let_the_deadline_pass(self, known: Known, _: int) -> None:
        """Let the intent's own time be over."""
        statement = "update backstay.intents set deadline_at = now() - interval '1 second' where intent_key = %s"
        self.auditor.execute(statement, (known.run.plan.intent_key,))
        known.intent.overdue = True

    def throw_or_lift_the_switch(self, _: int) -> None:
        """Switch all new effects off, or on again."""
        if self.killed:
            self.auditor.execute("delete from backstay.kill_switches")
        else:
            self.auditor.execute("insert into backstay.kill_switches values ('all', '', 'drill', 'tester')")
        self.killed = not self.killed

    def act_as_an_ended_run(self, known: Known, two: int) -> None:
        """Have a run that lost the intent do anything: it is refused, and the tables stay."""
        if len(known.runs) == 1:
            return
        stale = known.runs[two % (len(known.runs) - 1)]
        step_id = known.intent.steps[0]
        acts: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: stale.execute(step_id),
            lambda: stale.compensate(step_id),
            stale.close,
            stale.settle,
            lambda: stale.park(ParkReason.MISMATCH),
            lambda: stale.resolve("close"),
            stale.decide,
        )
        self.told("act_as_an_ended_run", acts[two % len(acts)](), Reason.RUN_STALE)

    def bring_to_an_end(self, known: Known) -> None:
        """What a saga and its operator would do last."""
        intent = known.intent
        if intent.parked is not None and intent.stuck is None:
            self.say(known, "forward" if PIVOT in intent.live else "close", None)
        elif intent.stuck is not None:
            self.say(known, "retry", intent.stuck)
        if PIVOT in intent.live and intent.is_open:
            if self.killed:
                self.throw_or_lift_the_switch(0)
            self.auditor.execute("update backstay.intents set deadline_at = now() + interval '1 hour'")
            intent.overdue = False
            self.landed(known, "k", self.run(known.run.execute("k")))
            missing = [step_id for step_id in intent.steps if step_id not in intent.effects]
            for step_id in missing:
                self.landed(known, step_id, self.run(known.run.execute(step_id)))
        elif intent.is_open:
            self.close(known, 0)
            for step_id in reversed(intent.steps):
                self.undo(known, step_id)
        self.settle(known, 0)


def play(machine: type[EngineMachine], url: str, how: settings) -> None:
    """Let hypothesis look for an order of calls in which rules and tables part; a failure prints how to repeat it."""
    machine.url = url
    patient = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run_machine(machine, settings=settings(how, deadline=None, print_blob=True, suppress_health_check=patient))


def test_any_order_of_calls_keeps_the_rules_and_the_invariants(desk_url: str) -> None:
    """The same calls every day, and told as they were: to shorten them takes minutes, and `make slow` does it."""
    everyday = settings(max_examples=10, stateful_step_count=40, phases=[Phase.generate], derandomize=True)
    play(EngineMachine, desk_url, everyday)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_orders_of_calls_keep_the_rules_and_the_invariants(desk_url: str) -> None:
    number = int(os.environ.get(SEED_VARIABLE, random.SystemRandom().randrange(10**9)))
    print(f"{SEED_VARIABLE}={number}")  # noqa: T201 - pytest shows it of a failed run
    play(seed(number)(EngineMachine), desk_url, settings(max_examples=250, stateful_step_count=60))

"""Places at the door: how many intents are carried at a time, how they are followed, when one gives its place back.

Every started saga needs a worker, database connections and Temporal's attention until it ends. A flood of starts that
are all accepted at once starves the ones that could finish; so a post waits for its place, in order, and beyond a
bound it is told to come later. A saga that waits for people needs nothing, so it holds no place.
"""

import asyncio
from typing import Any, Final, LiteralString, NamedTuple

from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities.database import Database
from contracts.envelope import Envelope
from contracts.errors import Phase, SagaError
from contracts.reasons import Reason

QUEUE_FACTOR: Final = 16
PLACE_WAIT_SECONDS_MAX: Final = 10.0
CARRY_SECONDS_MAX: Final = 30.0
"""After this time a saga gives its place back however it stands: it is waiting for something else than us."""
LOOK_EVERY_SECONDS: Final = 0.25
RETRY_AFTER_SECONDS: Final = 2

_AT_REST: Final[LiteralString] = """
select i.intent_key, i.run_id from backstay.intents i
where i.intent_key = any(%s) and i.final_at is null and (i.parked_reason is not null or exists (
    select from backstay.approval_requests r
    where r.intent_key = i.intent_key and i.phase = 'ADMITTED' and not exists (
        select from backstay.decisions d where d.intent_key = r.intent_key and d.step_id = r.step_id))
    or i.phase = 'ADMITTED' and i.plan::jsonb @> '{"opened": true, "sealed": false}')
"""


class Places:
    """A fixed number of places, handed out in the order of asking; a bounded queue before them."""

    def __init__(self, in_flight_max: int) -> None:
        """Offer `in_flight_max` places."""
        self.in_flight_max = in_flight_max
        self.queue_max = in_flight_max * QUEUE_FACTOR
        self._free = asyncio.Semaphore(in_flight_max)
        self._queued = 0
        self._taken = 0

    async def take(self) -> None:
        """Wait for a place. Raises SagaError(RATE_LIMITED): the queue is full, or no place came free in time."""
        if self._queued >= self.queue_max:
            raise self._busy()
        self._queued += 1
        try:
            async with asyncio.timeout(PLACE_WAIT_SECONDS_MAX):
                await self._free.acquire()
        except TimeoutError:
            raise self._busy() from None
        finally:
            self._queued -= 1
        self._taken += 1

    def give_back(self) -> None:
        """Free a place that was taken."""
        self._taken -= 1
        self._free.release()

    def _busy(self) -> SagaError:
        return SagaError(
            Reason.RATE_LIMITED,
            f"{self._taken} intents are being carried and {self._queued} wait for a place. This post started"
            f" nothing; send it again in {RETRY_AFTER_SECONDS} seconds.",
            details={
                "in_flight": self._taken,
                "in_flight_max": self.in_flight_max,
                "queued": self._queued,
                "queue_max": self.queue_max,
                "retry_after_seconds": RETRY_AFTER_SECONDS,
            },
            phase=Phase.VALIDATION,
        )


class Watched(NamedTuple):
    """An intent, in the hands of one run: it has not come to rest before that run has taken it over."""

    intent_key: str
    run_id: str | None
    """None: whichever run has it."""


class Rests:
    """Tells when sagas come to rest on people: one query for all that are watched, however many there are."""

    def __init__(self, database: Database) -> None:
        """Look into `database`, only while something is watched."""
        self._database = database
        self._watched: dict[Watched, tuple[asyncio.Event, int]] = {}
        self._task: asyncio.Task[None] | None = None

    def watch(self, watched: Watched) -> asyncio.Event:
        """Return an event that is set once the intent waits for a decision or an operator; `forget` it afterwards."""
        event, count = self._watched.get(watched, (asyncio.Event(), 0))
        self._watched[watched] = (event, count + 1)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())
        return event

    def forget(self, watched: Watched) -> None:
        """Stop watching, as often as it was watched."""
        event, count = self._watched.pop(watched)
        if count > 1:
            self._watched[watched] = (event, count - 1)

    async def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _look(self) -> None:
        while self._watched:
            await asyncio.sleep(LOOK_EVERY_SECONDS)
            open_ones = {watched: event for watched, (event, _) in self._watched.items() if not event.is_set()}
            if not open_ones:
                continue
            try:
                rows = await self._database.all(_AT_REST, (list({watched.intent_key for watched in open_ones}),))
            except SagaError:
                continue  # the database is away: whoever waits learns it from the saga itself
            resting = {row["intent_key"]: row["run_id"] for row in rows}
            for watched, event in open_ones.items():
                if watched.intent_key in resting and watched.run_id in (None, resting[watched.intent_key]):
                    event.set()


class Carrier:
    """Follows the sagas that were posted here, each in its place, until it ends, rests or takes long."""

    def __init__(self, database: Database, in_flight_max: int) -> None:
        """Carry at most `in_flight_max` at a time; rests are seen in `database`."""
        self.places = Places(in_flight_max)
        self._rests = Rests(database)
        self._carried: set[asyncio.Task[None]] = set()

    async def follow(
        self, handle: WorkflowHandle[Any, Envelope], intent_key: str, wait_seconds: float, *, holds_place: bool
    ) -> Envelope | None:
        """Wait for the outcome; None when the time is over, people are awaited, or only the tables know.

        A place that is held is given back when the saga ends, rests or takes long, also after this returned.
        """
        watched = Watched(intent_key, handle.result_run_id)
        result = asyncio.ensure_future(handle.result())
        resting = asyncio.ensure_future(self._rests.watch(watched).wait())

        async def settled(seconds: float) -> None:
            await asyncio.wait({result, resting}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

        async def carry() -> None:
            held = CARRY_SECONDS_MAX if holds_place else 0.0
            try:
                if holds_place:
                    try:
                        await settled(held)
                    finally:
                        self.places.give_back()
                if wait_seconds > held:
                    await settled(wait_seconds - held)
            finally:
                result.cancel()
                resting.cancel()
                await asyncio.wait({result, resting})
                self._rests.forget(watched)

        task = asyncio.create_task(carry())
        self._carried.add(task)
        task.add_done_callback(self._carried.discard)
        await settled(wait_seconds)
        return None if not result.done() or result.cancelled() else _outcome_of(result)

    async def close(self) -> None:
        """Stop following; sagas go on by themselves."""
        await asyncio.sleep(0)  # a task that has not begun has nothing yet that its cancellation would end
        for task in self._carried:
            task.cancel()
        if self._carried:
            await asyncio.wait(set(self._carried))
        await self._rests.close()


def _outcome_of(result: "asyncio.Future[Envelope]") -> Envelope | None:
    """Read what a run ended with; None when only the tables can tell (terminated, cancelled, Temporal away)."""
    try:
        return result.result()
    except WorkflowFailureError as failure:
        cause = failure.cause
        if isinstance(cause, ApplicationError) and cause.details and isinstance(cause.details[0], dict):
            return Envelope.model_validate(cause.details[0])
        return None
    except (RPCError, ValueError):  # a ValueError: what ended under this id is no saga of ours
        return None

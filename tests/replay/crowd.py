"""Many small random sagas at a time, with everything that people and machines do to them; all from one seed."""

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from temporalio.client import WorkflowFailureError, WorkflowHistory, WorkflowUpdateFailedError
from temporalio.service import RPCError

from contracts.base import JsonObject
from contracts.envelope import Envelope
from contracts.errors import SagaError
from contracts.reasons import Reason
from tests.support.sagas import (
    BOUND_SECONDS,
    LARGE_CENTS,
    Handle,
    Sagas,
    approval,
    cancellation,
    freeze_and_debit,
    request,
    resolution,
    states,
)
from tests.support.samples import look, note

AT_A_TIME: Final = 48
GLANCE_SECONDS: Final = 0.25
TOO_LATE: Final = (RPCError, WorkflowUpdateFailedError)
Named = tuple[str, WorkflowHistory]


@dataclass
class Crowd:
    """Sagas of one seed: what each is and suffers depends on seed and number only; who is faster does not."""

    sagas: Sagas
    seed: int

    async def run(self, count: int) -> list[Named]:
        """Run so many, some under more than one run; return all their histories."""
        room = asyncio.Semaphore(AT_A_TIME)

        async def one(number: int) -> Sequence[Named]:
            async with room:
                return await Member(self.sagas, Random(f"{self.seed}/{number}"), number).live()  # noqa: S311 - a test's

        return [named for lived in await asyncio.gather(*map(one, range(count))) for named in lived]


@dataclass
class Member:
    """One saga of the crowd."""

    sagas: Sagas
    random: Random
    number: int

    def steps(self) -> list[JsonObject]:
        """One to four steps, with the faults that they will meet."""
        if self.random.random() < 0.15:
            cents = self.random.choice([500, 700, LARGE_CENTS])
            chain = freeze_and_debit(cents)
            if self.random.random() < 0.3:
                chain[0]["arguments"]["account_id"] = self.random.choice(["A00000003", "A00000002"])
            return chain
        steps: list[JsonObject] = []
        for place in range(self.random.randint(1, 4)):
            step_id = f"s{self.number}x{place}"
            kind = self.random.choices(["write", "keep", "guard", "seal", "look"], [12, 3, 3, 1, 3])[0]
            step = look(step_id) if kind == "look" else note(step_id, kind)
            if kind == "write" and steps and steps[-1]["tool"].startswith("check") and self.random.random() < 0.5:
                step["arguments"] = {"text": {"$from": f"{steps[-1]['step_id']}.text"}}
            if kind != "look" and self.random.random() < 0.02:
                step["arguments"] = {**step["arguments"], "book_id": "B00000003"}
            self.spoil(step_id)
            steps.append(step)
        return steps

    def spoil(self, step_id: str) -> None:
        """Have a step, or its compensation, go wrong."""
        behaviour, random = self.sagas.behaviour, self.random
        match random.choices(["well", "refuse", "hiccup", "hiccups", "gone", "bug"], [60, 16, 8, 10, 2, 2])[0]:
            case "refuse":
                behaviour.refuse(step_id)
            case "hiccup":
                behaviour.fail(step_id, *_hiccups(1), moment=random.choice(["before", "after"]))
            case "hiccups":
                behaviour.fail(step_id, *_hiccups(2))
                if random.random() < 0.3:
                    behaviour.refuse(step_id)
            case "gone":
                behaviour.fail(step_id, *_hiccups(5))
            case "bug":
                behaviour.fail(step_id, ValueError("a bug"), moment="after")
            case _:
                pass
        match random.choices(["well", "refuse", "hiccups"], [70, 20, 10])[0]:
            case "refuse":
                behaviour.refuse(f"undo:{step_id}")
            case "hiccups":
                behaviour.fail(f"undo:{step_id}", *_hiccups(2))
            case _:
                pass

    async def live(self) -> list[Named]:
        """Start, be disturbed, be carried to the end; perhaps again."""
        name = f"crowd-{self.number}-{uuid.uuid4().hex[:8]}"
        fate = self.random.choices(["alone", "cancelled", "terminated", "cut off", "twice"], [58, 22, 5, 8, 7])[0]
        steps = self.steps()
        if fate == "cut off":  # while people are awaited; else a saga is too fast to be caught at work
            steps.append(note(f"s{self.number}x9", "guard"))
        body = request(*steps)
        at_start = fate == "cancelled" and self.random.random() < 0.2
        more: dict[str, Any] = {"start_signal": "cancel", "start_signal_args": [cancellation()]} if at_start else {}
        handle = await self.sagas.start(body, workflow_id=name, **more)
        runs = [handle]
        if fate == "cancelled" and not at_start:
            await asyncio.sleep(self.random.uniform(0, 0.6))
            await self.cancel(handle)
        if fate in ("terminated", "cut off"):
            await (self.rest(handle) if fate == "cut off" else asyncio.sleep(self.random.uniform(0.05, 0.8)))
            if await self.terminated(handle):
                handle = await self.sagas.start(body, workflow_id=name)
                runs.append(handle)
        if fate == "twice":
            runs.append(await self.sagas.start(body, workflow_id=f"{name}-again"))
        for run in runs[-2:] if fate == "twice" else [handle]:
            await self.carry(run)
        return [(f"{run.id}-{number}", await self.history(run)) for number, run in enumerate(runs)]

    async def rest(self, handle: Handle) -> None:
        """Wait until a saga waits for people or has ended."""
        result = asyncio.create_task(self.ended(handle))
        waits = asyncio.create_task(self.sagas.waiting(handle))
        await asyncio.wait([result, waits], return_when=asyncio.FIRST_COMPLETED)
        for task in (result, waits):
            task.cancel()
        await asyncio.gather(result, waits, return_exceptions=True)

    async def history(self, handle: Handle) -> WorkflowHistory:
        """Fetch the history of exactly this run."""
        run = self.sagas.client.get_workflow_handle(handle.id, run_id=handle.result_run_id)
        return await run.fetch_history()

    async def terminated(self, handle: Handle) -> bool:
        """Cut a run off, if it has not ended."""
        try:
            await handle.terminate("a test")
        except RPCError:
            return False
        return True

    async def cancel(self, handle: Handle) -> None:
        """Have it stopped by one of the three doors; it may be too late."""
        try:
            match self.random.choice(["update", "signal", "temporal"]):
                case "update":
                    await self.sagas.update(handle, "cancel", cancellation())
                case "signal":
                    await handle.signal("cancel", cancellation())
                case _:
                    await handle.cancel()
        except TOO_LATE:
            return

    async def carry(self, handle: Handle) -> None:
        """Answer whatever it asks until it has ended."""
        result = asyncio.create_task(self.ended(handle))
        async with asyncio.timeout(3 * BOUND_SECONDS):
            said = 0
            while not (await asyncio.wait([result], timeout=GLANCE_SECONDS))[0]:
                said += 1
                await self.answer(handle, said)
        await result

    async def ended(self, handle: Handle) -> None:
        """Wait for the end, a failed one too."""
        try:
            await handle.result()
        except WorkflowFailureError:
            return

    async def answer(self, handle: Handle, said: int) -> None:
        """Look at it, and say what a person would."""
        try:
            card = await self.sagas.status(handle)
            waits = str((card.data or {}).get("waiting_for"))
            if waits.startswith("a decision"):
                verdict = self.random.choices(["approve", "deny"], [3, 1])[0]
                message = approval(card, verdict, decision_id=f"d{said}")
                await self.say(handle, "decide", message)
            elif waits.startswith("an operator"):
                await self.say(handle, "resolve", self.resolution(card, waits, said))
        except RPCError:
            return  # no task has been completed yet, or it has ended

    def resolution(self, card: Envelope, waits: str, said: int) -> dict[str, object]:
        """Choose an operator's verb, and mend what stood in the way."""
        self.mend()
        if "COMPENSATION_REFUSED" in waits:
            stuck = next(step_id for step_id, state in states(card).items() if state == "PARKED")
            verb = self.random.choice(["retry", "skip", "done"])
            return resolution(verb, stuck, resolution_id=f"r{said}")
        verb = self.random.choice(["close", "forward"]) if "INTERRUPTED" in waits else "forward"
        return resolution(verb, resolution_id=f"r{said}")

    def mend(self) -> None:
        """Take back, mostly, what this saga's steps refuse."""
        if self.random.random() < 0.2:
            return
        for place in range(4):
            for prefix in ("", "undo:"):
                try:
                    self.sagas.behaviour.allow(f"{prefix}s{self.number}x{place}")
                except KeyError:
                    continue

    async def say(self, handle: Handle, name: str, message: dict[str, object]) -> None:
        """Send a message by one of the two doors."""
        if self.random.random() < 0.5:
            await handle.signal(name, message)
            return
        try:
            await self.sagas.update(handle, name, message)
        except WorkflowUpdateFailedError:
            return  # refused by its validator: it has just ended


def _hiccups(count: int) -> list[SagaError]:
    return [SagaError(Reason.IN_PROGRESS, "come back") for _ in range(count)]

"""Records one real history for every end state: `.venv/bin/python -m tests.replay.record`.

Run it again after a change of the workflow that is meant to be incompatible, or to add a scene: the stored files are
what proves that a new release still understands sagas that an old one began, so old ones are not replaced lightly.
A scene is recorded when its file is missing; `--all` records every scene anew. Machine, process and path are scrubbed.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client, WorkflowFailureError
from temporalio.contrib.pydantic import pydantic_data_converter

from activities import migrate
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.risk import Policy
from tests.support.reserving import held
from tests.support.sagas import (
    Handle,
    Sagas,
    approval,
    cancellation,
    freeze_and_debit,
    request,
    reset,
    resolution,
    serve,
)
from tests.support.samples import look, note
from worker.stack import LocalStack

HISTORIES: Final = Path(__file__).parent / "histories"
SOMEBODY: Final = "worker"
Scene = Callable[[Sagas], Awaitable[Handle]]
SCENES: Final[dict[str, Scene]] = {}
POLICIES: Final = {
    "not_applied_expired": Policy(approval_expiry_seconds=1),
    "not_applied_locked": Policy(lock_wait_seconds=1),
}


def scene(function: Scene) -> Scene:
    """Note a scene under its name."""
    SCENES[getattr(function, "__name__", "")] = function
    return function


async def _ended(sagas: Sagas, *steps: dict[str, Any], **more: Any) -> Handle:  # noqa: ANN401 - as in `request`
    handle = await sagas.start(request(*steps, **more))
    await sagas.result(handle)
    return handle


def _hiccups(count: int = 2) -> list[SagaError]:
    return [SagaError(Reason.IN_PROGRESS, "come back") for _ in range(count)]


async def _decided(sagas: Sagas, verdict: str, door: str) -> Handle:
    handle = await sagas.start(request(note("a"), note("b", "guard")))
    card = await sagas.waiting(handle)
    if door == "update":
        await sagas.update(handle, "decide", approval(card, verdict))
    else:
        await handle.signal("decide", approval(card, verdict))
    await sagas.result(handle)
    return handle


async def _resolved(sagas: Sagas, verb: str, door: str) -> Handle:
    sagas.behaviour.refuse("c")
    sagas.behaviour.refuse("undo:b")
    handle = await sagas.start(request(note("a"), note("b"), note("c")))
    await sagas.waiting(handle)
    sagas.behaviour.allow("undo:b")
    if door == "update":
        await sagas.update(handle, "resolve", resolution(verb, "b"))
    else:
        await handle.signal("resolve", resolution(verb, "b"))
    await sagas.result(handle)
    return handle


async def _interrupted(sagas: Sagas, verb: str) -> Handle:
    sagas.behaviour.fail("b", *_hiccups())
    gate = sagas.behaviour.hold("b")
    body = request(note("a"), note("b"))
    first = await sagas.start(body, workflow_id="same")
    await gate.reached.wait()
    await first.terminate()
    gate.open()
    second = await sagas.start(body, workflow_id="same")
    await sagas.waiting(second)
    await sagas.update(second, "resolve", resolution(verb))
    await sagas.result(second)
    return second


@scene
async def committed(sagas: Sagas) -> Handle:
    """The reference chain."""
    return await _ended(sagas, *freeze_and_debit())


@scene
async def committed_two_at_once(sagas: Sagas) -> Handle:
    """Independent steps of two tools run side by side, and one comes after both."""
    freeze, debit = freeze_and_debit()
    beside: dict[str, Any] = {**note("beside"), "needs": []}
    return await _ended(sagas, freeze | {"needs": []}, beside, debit | {"needs": ["beside"]})


@scene
async def committed_with_a_read_and_a_binding(sagas: Sagas) -> Handle:
    """A step that only reads feeds one that writes."""
    return await _ended(sagas, look("r"), note("b") | {"arguments": {"text": {"$from": "r.text"}}})


def _late(account: str) -> list[dict[str, Any]]:
    """Write a note, look what an account has, hold it and take it."""
    look_into = {"step_id": "look", "tool": "check_account_balance", "arguments": {"account_id": account}}
    freeze, debit = freeze_and_debit()
    for step in (freeze, debit):
        step["arguments"]["amount_cents"] = {"$from": "look.available_cents"}
    freeze["arguments"]["account_id"] = account
    return [note("a"), look_into, freeze, debit]


@scene
async def committed_late_steps_approved(sagas: Sagas) -> Handle:
    """Two bound amounts came out large: each was asked about after the first write."""
    handle = await sagas.start(request(*_late("A00000001")))
    card = await sagas.waiting(handle)
    for grade in sagas.rows("select step_id, digest from backstay.late_grades order by step_id"):
        named = {"plan_digest": grade["digest"], "step_id": grade["step_id"], "decision_id": f"d-{grade['step_id']}"}
        await sagas.update(handle, "decide", approval(card, **named))
    await sagas.result(handle)
    return handle


@scene
async def compensated_late_step_refused(sagas: Sagas) -> Handle:
    """A bound amount came out over the account's limit."""
    return await _ended(sagas, *_late("A00000003"))


@scene
async def committed_approved_by_update(sagas: Sagas) -> Handle:
    """A person said yes, and was answered."""
    return await _decided(sagas, "approve", "update")


@scene
async def committed_approved_by_signal(sagas: Sagas) -> Handle:
    """A person said yes."""
    return await _decided(sagas, "approve", "signal")


@scene
async def committed_after_hiccups_by_an_ordinary_activity(sagas: Sagas) -> Handle:
    """Local attempts gave out."""
    sagas.behaviour.fail("a", *_hiccups())
    return await _ended(sagas, note("a"))


@scene
async def committed_past_the_pivot(sagas: Sagas) -> Handle:
    """Stuck after a step that cannot be undone, then sent forward."""
    sagas.behaviour.refuse("b")
    handle = await sagas.start(request(note("a", "seal"), note("b", "keep")))
    await sagas.waiting(handle)
    sagas.behaviour.allow("b")
    await sagas.update(handle, "resolve", resolution("forward"))
    await sagas.result(handle)
    return handle


@scene
async def not_applied_rejected(sagas: Sagas) -> Handle:
    """Refused by admission for good: somebody else's book."""
    return await _ended(sagas, note("a", book_id="B00000003"))


@scene
async def failed_rejection_that_may_be_posted_again(sagas: Sagas) -> Handle:
    """Refused by admission for now: the run fails."""
    sagas.rows("insert into backstay.kill_switches values ('all', '', 'drill', 'tester')")
    handle = await sagas.start(request(note("a")))
    try:
        await sagas.result(handle)
    except WorkflowFailureError:
        return handle
    raise AssertionError("a rejection that may be retried fails the run")


@scene
async def not_applied_denied_by_update(sagas: Sagas) -> Handle:
    """A person said no, and was answered."""
    return await _decided(sagas, "deny", "update")


@scene
async def not_applied_denied_by_signal(sagas: Sagas) -> Handle:
    """A person said no."""
    return await _decided(sagas, "deny", "signal")


@scene
async def not_applied_expired(sagas: Sagas) -> Handle:
    """Nobody decided in time."""
    return await _ended(sagas, note("a", "guard"))


@scene
async def not_applied_cancelled_by_update(sagas: Sagas) -> Handle:
    """Stopped while people were awaited."""
    handle = await sagas.start(request(note("a", "guard")))
    await sagas.waiting(handle)
    await sagas.update(handle, "cancel", cancellation())
    await sagas.result(handle)
    return handle


@scene
async def not_applied_cancelled_by_signal_before_the_first_task(sagas: Sagas) -> Handle:
    """Stopped before anything."""
    handle = await sagas.start(request(note("a")), start_signal="cancel", start_signal_args=[cancellation()])
    await sagas.result(handle)
    return handle


@scene
async def not_applied_refused(sagas: Sagas) -> Handle:
    """The first step said no."""
    sagas.behaviour.refuse("a")
    return await _ended(sagas, note("a"), note("b"))


@scene
async def not_applied_deadline(sagas: Sagas) -> Handle:
    """Approved too late for the whole."""
    handle = await sagas.start(request(note("a", "guard")))
    card = await sagas.waiting(handle)
    sagas.rows("update backstay.intents set deadline_at = now() - interval '1 second'")
    await sagas.update(handle, "decide", approval(card))
    await sagas.result(handle)
    return handle


@scene
async def compensated_refused(sagas: Sagas) -> Handle:
    """Two tools are undone in reverse order."""
    sagas.behaviour.refuse("c")
    return await _ended(sagas, *freeze_and_debit(), note("c"))


@scene
async def compensated_refused_by_an_ordinary_activity(sagas: Sagas) -> Handle:
    """Refused after local attempts gave out; the compensation's gave out too."""
    sagas.behaviour.fail("b", *_hiccups())
    sagas.behaviour.refuse("b")
    sagas.behaviour.fail("undo:a", *_hiccups())
    sagas.behaviour.leave("undo:a", "the ink stays")
    return await _ended(sagas, note("a"), note("b"))


@scene
async def compensated_cancelled_by_temporal(sagas: Sagas) -> Handle:
    """Temporal's own cancel while a step runs."""
    sagas.behaviour.fail("a", *_hiccups())
    gate = sagas.behaviour.hold("a", "after")
    handle = await sagas.start(request(note("a"), note("b")))
    await gate.reached.wait()
    await handle.cancel()
    gate.open()
    await sagas.result(handle)
    return handle


@scene
async def compensated_denied(sagas: Sagas) -> Handle:
    """A no after a yes that was not spent."""
    sagas.behaviour.fail("a", *_hiccups())
    gate = sagas.behaviour.hold("a", "after")
    handle = await sagas.start(request(note("a"), note("b", "guard")))
    card = await sagas.waiting(handle)
    await sagas.update(handle, "decide", approval(card))
    await gate.reached.wait()
    await sagas.update(handle, "decide", approval(card, "deny"))
    gate.open()
    await sagas.result(handle)
    return handle


@scene
async def parked_then_done(sagas: Sagas) -> Handle:
    """An operator undid it by hand."""
    return await _resolved(sagas, "done", "update")


@scene
async def parked_then_skipped(sagas: Sagas) -> Handle:
    """An operator let it stand."""
    return await _resolved(sagas, "skip", "signal")


@scene
async def parked_then_retried(sagas: Sagas) -> Handle:
    """An operator had it tried again."""
    return await _resolved(sagas, "retry", "update")


@scene
async def interrupted_then_closed(sagas: Sagas) -> Handle:
    """Adopted, then undone."""
    return await _interrupted(sagas, "close")


@scene
async def interrupted_then_forwarded(sagas: Sagas) -> Handle:
    """Adopted, then finished."""
    return await _interrupted(sagas, "forward")


def _lock(reason_code: str) -> dict[str, Any]:
    arguments = {"account_id": "A00000001", "reason_code": reason_code}
    return {"step_id": "lock", "tool": "lock_customer_account", "arguments": arguments}


async def _behind_a_holder(sagas: Sagas) -> tuple[Handle, Callable[[], None]]:
    """Start a saga that waits for an account that another one has locked; returns it, and what ends the other."""
    gate = sagas.behaviour.hold("hold")
    sagas.behaviour.refuse("hold")
    await sagas.start(request(freeze_and_debit()[0], look("hold"), _lock("LEGAL_ORDER")))
    await gate.arrived()
    handle = await sagas.start(request(_lock("SUSPECTED_FRAUD")))
    while not sagas.rows("select 1 from backstay.counting_locks where not is_held"):  # noqa: ASYNC110 - rows tell
        await asyncio.sleep(0.02)
    return handle, gate.open


@scene
async def committed_after_waiting_for_a_lock(sagas: Sagas) -> Handle:
    """Its first step rested until another saga had ended."""
    handle, release = await _behind_a_holder(sagas)
    release()
    await sagas.result(handle)
    return handle


@scene
async def not_applied_locked(sagas: Sagas) -> Handle:
    """It waited as long as it might."""
    handle, _ = await _behind_a_holder(sagas)
    await sagas.result(handle)
    return handle


@scene
async def duplicate_under_another_id(sagas: Sagas) -> Handle:
    """The second run of one intent."""
    body = request(note("a"))
    await sagas.result(await sagas.start(body))
    second = await sagas.start(body)
    await sagas.result(second)
    return second


@scene
async def reset_run_learns_that_it_owns_nothing(sagas: Sagas) -> Handle:
    """A parked run was reset; its first message is refused, so that it asks how it stands."""
    sagas.behaviour.refuse("b")
    sagas.behaviour.refuse("undo:a")
    handle = await sagas.start(request(note("a"), note("b")))
    card = await sagas.waiting(handle)
    again = await reset(sagas, handle, "last")
    await sagas.update(again, "resolve", resolution("retry", "a"))
    await sagas.waiting(again, lambda _: sagas.intent(card)["parked_reason"] == "INTERRUPTED")
    sagas.behaviour.allow("undo:a")
    await sagas.update(again, "resolve", resolution("close", resolution_id="r2"))
    await sagas.result(again)
    return again


@scene
async def committed_what_was_reserved(sagas: Sagas) -> Handle:
    """Two reservations are confirmed when all else has landed, one of them after hiccups."""
    sagas.behaviour.fail("b.confirm", *_hiccups())
    return await _ended(sagas, held("a"), held("b"), note("c"))


@scene
async def compensated_what_was_reserved(sagas: Sagas) -> Handle:
    """The first confirmation fails for good."""
    sagas.behaviour.fail("a.confirm", *_hiccups(4))
    return await _ended(sagas, held("a"), held("b"))


@scene
async def parked_confirmation_then_skipped(sagas: Sagas) -> Handle:
    """A later confirmation is refused, and a person says that it need not be."""
    sagas.behaviour.refuse("b.confirm")
    handle = await sagas.start(request(held("a"), held("b")))
    await sagas.waiting(handle)
    await sagas.update(handle, "resolve", resolution("skip", "b.confirm"))
    await sagas.result(handle)
    return handle


def scrubbed(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Take out who and where: identities, sticky queues (they are named after a process), stack traces."""
    if isinstance(value, list):
        return [scrubbed(one) for one in value]  # pyright: ignore[reportUnknownVariableType] - JSON
    if not isinstance(value, dict):
        return value
    made: dict[str, Any] = {}
    for key, one in value.items():  # pyright: ignore[reportUnknownVariableType] - JSON
        if key != "stackTrace":
            made[str(key)] = scrubbed(one)  # pyright: ignore[reportUnknownArgumentType] - JSON
    if "identity" in made:
        made["identity"] = SOMEBODY
    if made.get("kind") == "TASK_QUEUE_KIND_STICKY":
        made["name"] = SOMEBODY
    return made


def store(name: str, history: str, directory: Path = HISTORIES) -> None:
    """Write a history, one event per line."""
    lines = [json.dumps(event, ensure_ascii=False) for event in scrubbed(json.loads(history))["events"]]
    body = '{"events": [\n' + ",\n".join(lines) + "\n]}\n"
    (directory / f"{name}.json").write_text(body, encoding="utf-8")


async def record(stack: LocalStack, names: list[str]) -> None:
    """Run each scene on a fresh database and store its history."""
    client = await Client.connect(stack.temporal_address, data_converter=pydantic_data_converter)
    template = "recorded"
    await asyncio.to_thread(migrate.upgrade, stack.create_database(template))
    for name in names:
        url = stack.create_database(template=template)
        async with serve(client, url, "backstay", POLICIES.get(name)) as sagas:
            handle = await SCENES[name](sagas)
            store(name, (await handle.fetch_history()).to_json())
        stack.drop_database(url)
        sys.stdout.write(f"recorded {name}\n")


def main() -> None:
    """Record what is missing, or everything; the shutdown of temporalio 1.35 may abort, so it is not awaited."""
    HISTORIES.mkdir(exist_ok=True)
    names = [name for name in SCENES if "--all" in sys.argv or not (HISTORIES / f"{name}.json").exists()]
    with LocalStack.temporary() as stack:
        asyncio.run(record(stack, names))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

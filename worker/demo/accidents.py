"""The scenes where things go wrong: a killed worker, a cancel that races, a compensation that is refused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from contracts.envelope import Cause, Outcome
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.saga import ParkReason
from worker.demo.claims import DemoFailedError, hold
from worker.demo.faults import AFTER_DEBIT, BEFORE_DEBIT, BEFORE_TRANSFER
from worker.demo.owner import CURRENT, SAVINGS, SECOND
from worker.demo.words import hold_outcome

if TYPE_CHECKING:
    from contracts.envelope import Envelope
    from worker.demo.tables import Account
    from worker.demo.world import Posting, World

CANCEL_LEADS_SECONDS: Final = (0.0, 1.6)
"""How long after the cancel was sent the debit may go on.

A saga hears nothing in the middle of a workflow task; after 1.6 s (80 % of the demo's task time-out) it looks up.
"""


async def killed(world: World) -> None:
    """The worker dies between the commit and its acknowledgement; the step runs again and lands nothing new."""
    world.screen.scene(
        7,
        "SIGKILL between the commit and its acknowledgement",
        "The debit is in the database and nobody has been told when the worker dies; another one runs the step "
        "again, finds its key, and the money has moved once.",
    )
    before = world.tables.account(CURRENT)
    posting = world.posting("07-worker-killed")
    world.faults.arm(AFTER_DEBIT)
    await world.post(posting, wait=False)
    await world.faults.reached(AFTER_DEBIT)
    saga = world.saga(posting)
    hold("effects before the kill", {"freeze": "LANDED", "debit": "LANDED"}, saga.execute)
    hold("phase before the kill", "ADMITTED", saga.phase)
    first = world.serials(posting)
    pid = world.kill_worker()
    told = await world.acknowledged(posting)
    hold("acknowledgements of the debit before the kill", 0, told.count("debit_frozen_funds@1"))
    world.screen.note(f"SIGKILL to worker {pid}: the debit is committed, not acknowledged. A new worker starts.")
    await world.start_worker()
    envelope = await world.outcome(posting)

    hold_outcome(envelope, Outcome.COMMITTED)
    saga, after = world.saga(posting), world.tables.account(CURRENT)
    attempt = await world.task_attempt(posting)
    if attempt < 2:  # noqa: PLR2004 - the second is the first after the kill
        raise DemoFailedError("the killed worker's task was acknowledged at its first attempt")
    hold("effects and their serial numbers", first, world.serials(posting))
    hold("movements", (("CAPTURE", 6_400),), saga.movements)
    hold("audit rows", {"admitted": 1, "effect": 2, "settled": 1}, saga.audit)
    hold("balance", before.balance_cents - 6_400, after.balance_cents)
    hold("held amount", before.held_cents, after.held_cents)
    world.screen.fact(
        f"Attempt {attempt} of the same task; still effects {', '.join(f'#{number}' for number in first.values())}"
        f" of before the kill, {len(saga.movements)} movement, {saga.audit['effect']} audit rows of effects."
    )


async def cancelled(world: World) -> None:
    """A cancel races the second step, three times; whoever wins, envelope and tables agree."""
    world.screen.scene(
        8,
        "A cancel races the second step",
        "Who wins is decided by the database and nobody can say before; what must never differ is what the customer "
        "is told and what the tables hold.",
    )
    for number, lead_seconds in enumerate(CANCEL_LEADS_SECONDS, 1):
        before = world.tables.account(CURRENT)
        posting = world.posting("08-cancel-races", business_reference=f"order-1008-{number}")
        world.faults.arm(BEFORE_DEBIT)
        await world.post(posting, wait=False)
        await world.faults.reached(BEFORE_DEBIT)
        hold("effects when the cancel is sent", {"freeze": "LANDED"}, world.saga(posting).execute)
        cancel = asyncio.create_task(_cancel(world, posting))
        await asyncio.wait({cancel}, timeout=lead_seconds)
        world.faults.end(BEFORE_DEBIT)
        answer = await cancel
        envelope = await world.outcome(posting)
        winner = _winner(world, posting, before, envelope)
        when = f"{lead_seconds:.1f} s after" if lead_seconds else "together with"
        world.screen.fact(f"The debit went on {when} the cancel, and {winner} won; envelope and tables agree.")
        world.screen.fact(f"The cancel was answered: {answer}")


async def _cancel(world: World, posting: Posting) -> str:
    """Ask the saga to stop; return what it said, which may be that it is too late."""
    try:
        answer = await world.messages.cancel(
            world.settings.tenant, posting.intent_id, requested_by=world.settings.principal
        )
    except SagaError as error:
        if error.reason is not Reason.TOO_LATE:
            raise
        return str(error)
    return str((answer.data or {})["message"])


def _winner(world: World, posting: Posting, before: Account, envelope: Envelope) -> str:
    """Hold all accounts of a race against each other, and say who won."""
    saga, after = world.saga(posting), world.tables.account(CURRENT)
    data = envelope.data or {}
    hold("outcome in the envelope is the phase in the table", saga.phase, data["outcome"])
    hold("cause in the envelope is the cause in the table", saga.cause, data["cause"])
    hold("held amount after a race", before.held_cents, after.held_cents)
    match saga.phase:
        case "COMMITTED":
            hold("effects after the step has won", {"freeze": "LANDED", "debit": "LANDED"}, saga.execute)
            hold("balance after the step has won", before.balance_cents - 3_200, after.balance_cents)
            return "the step"
        case "COMPENSATED":
            hold("cause", Cause.CANCELLED.value, saga.cause)
            live = [step for step, state in saga.execute.items() if state == "LANDED"]
            hold("live effects after the cancel has won", [], live)
            hold("balance after the cancel has won", before.balance_cents, after.balance_cents)
            return "the cancel"
        case phase:
            raise DemoFailedError(f"a race ended {phase}")


async def parked(world: World) -> None:
    """A compensation is refused for good: the saga parks, and an operator resolves it with evidence."""
    world.screen.scene(
        9,
        "A compensation that is refused",
        "After the debit the bank closes the account, so the third step refuses and the refund has nowhere to go: "
        "what a machine cannot put right rests, in the open, until a person says what was done.",
    )
    posting = world.posting("09-compensation-refused")
    savings = world.tables.account(SAVINGS)
    world.faults.arm(BEFORE_TRANSFER)
    await world.post(posting, wait=False)
    await world.faults.reached(BEFORE_TRANSFER)
    hold("effects at that moment", {"freeze": "LANDED", "debit": "LANDED"}, world.saga(posting).execute)
    world.owner.close_account(SECOND)
    world.screen.note(f"The bank closes account {SECOND} between the debit and the third step.")
    world.faults.end(BEFORE_TRANSFER)
    envelope = await world.outcome(posting)

    hold_outcome(envelope, Outcome.PARKED, Cause.REFUSED)
    saga = world.saga(posting)
    hold("parked", ("CLOSING", ParkReason.COMPENSATION_REFUSED.value), (saga.phase, saga.parked))
    hold("effects while parked", {"freeze": "LANDED", "debit": "LANDED"}, saga.execute)
    hold("audit rows of refused compensations", 1, saga.audit.get("compensation_refused"))
    await world.command("parked")
    evidence = "80.00 EUR refunded by bank transfer, ticket OPS-17"
    await world.command("resolve", posting.intent_id, "debit", "done", "--evidence", evidence)
    envelope = await world.outcome(posting)

    hold_outcome(envelope, Outcome.COMPENSATED, Cause.REFUSED)
    saga = world.saga(posting)
    hold("parked", None, saga.parked)
    hold("effects", {"freeze": "COMPENSATED", "debit": "COMPENSATED"}, saga.execute)
    hold("savings", savings, world.tables.account(SAVINGS))
    resolved = world.tables.rows(
        "select step_id, verb, operator, evidence from backstay.resolutions where intent_key = %s",
        (posting.intent_key,),
    )
    operator = world.settings.operator
    hold("resolutions", [{"step_id": "debit", "verb": "done", "operator": operator, "evidence": evidence}], resolved)
    world.screen.fact(f"{saga.phase}: {operator} said `done` for the debit; evidence: {evidence}.")

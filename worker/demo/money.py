"""The first scenes: money moves once, comes back when it must, and a repeat moves nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from contracts.envelope import Cause, Outcome
from contracts.reasons import Reason
from worker.demo.claims import hold, until
from worker.demo.owner import CURRENT, FRIEND
from worker.demo.words import cents, hold_outcome, steps_of

if TYPE_CHECKING:
    from worker.demo.world import World

KEY: Final = "repair-4711"


async def commits(world: World) -> None:
    """Freeze, then debit: both land."""
    world.screen.scene(
        1,
        "Freeze, then debit",
        "An amount is held and the hold is captured: each step lands once, in one transaction with its key and its "
        "audit row.",
    )
    before = world.tables.account(CURRENT)
    posting = world.posting("01-freeze-then-debit")
    envelope = await world.post(posting, idempotency_key=KEY)

    hold_outcome(envelope, Outcome.COMMITTED)
    saga, after = world.saga(posting), world.tables.account(CURRENT)
    hold("effects", {"freeze": "LANDED", "debit": "LANDED"}, saga.execute)
    hold("movements", (("CAPTURE", 12_500),), saga.movements)
    hold("audit rows", {"admitted": 1, "effect": 2, "settled": 1}, saga.audit)
    hold("balance", before.balance_cents - 12_500, after.balance_cents)
    hold("held amount", before.held_cents, after.held_cents)
    (_, amount), *_ = saga.movements
    world.screen.fact(
        f"The tables agree: {len(saga.execute)} effects, {len(saga.movements)} movement of {cents(amount)},"
        f" {cents(after.held_cents)} still held."
    )


async def compensates(world: World) -> None:
    """A third step refuses: both earlier ones are compensated, the later one first."""
    world.screen.scene(
        2,
        "A later step refuses, both earlier ones are compensated",
        "The third step pays into somebody else's account, so a person is asked first; while they read the card "
        "that account is closed: the step refuses, and debit and hold are compensated in reverse order.",
    )
    before = world.tables.account(CURRENT)
    posting = world.posting("02-later-step-refuses")
    waiting = await world.post(posting)
    hold_outcome(waiting, Outcome.PENDING)
    hold("effects while people are asked", {}, world.saga(posting).execute)

    world.owner.close_account(FRIEND)
    world.screen.note(f"The bank closes the friend's account {FRIEND}; then the payment is approved.")
    await world.messages.decide(world.settings.tenant, posting.intent_id, "approve", approver=world.settings.approver)
    envelope = await world.outcome(posting)

    hold_outcome(envelope, Outcome.COMPENSATED, Cause.REFUSED)
    hold("reason", Reason.WRONG_STATE, envelope.error.code if envelope.error else None)
    saga, after = world.saga(posting), world.tables.account(CURRENT)
    hold("effects", {"freeze": "COMPENSATED", "debit": "COMPENSATED"}, saga.execute)
    hold("compensations in order", ("debit", "freeze"), saga.compensated)
    hold("movements", (("CAPTURE", 8_900), ("REFUND", 8_900)), saga.movements)
    hold("audit rows of refusals", 1, saga.audit.get("refusal"))
    hold("balance and hold", before, after)
    world.screen.fact(
        f"Compensated in this order: {', '.join(saga.compensated)}; {steps_of(saga.movements)}; the account has"
        f" {cents(after.balance_cents)}, as before."
    )


async def repeats(world: World) -> None:
    """The same intent again: the first answer, no second effect."""
    world.screen.scene(
        3,
        "The same intent, posted twice",
        "An agent that lost the answer posts again: the engine makes the key from the intent itself, so the repeat "
        "gets the first outcome and moves nothing.",
    )
    posting = world.posting("01-freeze-then-debit")
    first, effects = world.saga(posting), world.effects()
    before = world.tables.account(CURRENT)
    envelope = await world.post(posting)

    hold_outcome(envelope, Outcome.COMMITTED)
    hold("duplicate", (True, posting.intent_id), (envelope.meta.duplicate, envelope.meta.duplicate_of))
    hold("everything the tables hold of it", first, world.saga(posting))
    hold("number of all effects", effects, world.effects())
    hold("account", before, world.tables.account(CURRENT))
    world.screen.fact(f"duplicate = true; still {len(first.execute)} effects and {len(first.movements)} movement.")


async def reuses(world: World) -> None:
    """The same explicit key for another intent: 422, nothing is run."""
    world.screen.scene(
        4,
        "The same key for another intent",
        "The Idempotency-Key of scene 1 comes with ten times the amount: a key never means two things, so the door "
        "refuses before anything is started.",
    )
    posting = world.posting("04-same-key-other-intent")
    intents, noted = world.tables.tally().intents, world.door_refusals()
    envelope = await world.post(posting, idempotency_key=KEY)

    hold("status code", 422, envelope.status_code)
    hold("reason", Reason.KEY_REUSED, envelope.error.code if envelope.error else None)
    hold("rows of this intent", None, world.tables.saga(posting.intent_id))
    hold("intents", intents, world.tables.tally().intents)
    await until("the audit row of the refusal", lambda: world.door_refusals() == noted + 1)
    world.screen.fact(
        f"{envelope.status_code} {Reason.KEY_REUSED}: no intent, no workflow, no effect; one audit row says who tried."
    )

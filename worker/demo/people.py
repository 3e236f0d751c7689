"""The scenes with people: a large amount waits for a decision and holds nothing meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.envelope import Cause, Outcome
from worker.demo.claims import hold
from worker.demo.owner import CURRENT
from worker.demo.words import cents, hold_outcome

if TYPE_CHECKING:
    from worker.demo.world import Posting, World


async def approved(world: World) -> None:
    """An amount over the threshold waits, is approved from the command line, and lands once."""
    world.screen.scene(
        5,
        "Too large to go unseen: approved",
        "Over 10,000.00 EUR a person decides first, over exactly these arguments; until then nothing is written and "
        "nothing is held, so a slow approver costs the customer nothing.",
    )
    before = world.tables.account(CURRENT)
    posting = await _asked(world, "05-over-the-threshold")
    await world.command("approve", posting.intent_id)
    envelope = await world.outcome(posting)

    hold_outcome(envelope, Outcome.COMMITTED)
    saga, after = world.saga(posting), world.tables.account(CURRENT)
    hold("effects", {"freeze": "LANDED", "debit": "LANDED"}, saga.execute)
    hold("balance", before.balance_cents - 1_249_900, after.balance_cents)
    hold("held amount", before.held_cents, after.held_cents)
    spent = world.tables.rows(
        "select c.step_id, d.approver, d.decided_at < e.landed_at as earlier from backstay.approval_consumptions c"
        " join backstay.decisions d using (intent_key, step_id, decision_id)"
        " join backstay.effects e using (step_key) where c.intent_key = %s order by e.transaction_id",
        (posting.intent_key,),
    )
    approver = world.settings.approver
    hold(
        "spent approvals",
        [{"step_id": step, "approver": approver, "earlier": True} for step in ("freeze", "debit")],
        spent,
    )
    world.screen.fact(
        f"Each of {len(spent)} approvals of {approver} was spent once, in its effect's own transaction;"
        f" {cents(before.balance_cents - after.balance_cents)} are debited."
    )


async def denied(world: World) -> None:
    """Another one is denied: nothing happened at all."""
    world.screen.scene(
        6,
        "Too large to go unseen: denied",
        "A no is final and leaves nothing behind that would have to be undone.",
    )
    before = world.tables.account(CURRENT)
    posting = await _asked(world, "06-denied")
    await world.command("deny", posting.intent_id, "--reason", "One cargo bike is enough.")
    envelope = await world.outcome(posting)

    hold_outcome(envelope, Outcome.NOT_APPLIED, Cause.DENIED)
    saga = world.saga(posting)
    hold("effects", {}, saga.execute)
    hold("compensations", (), saga.compensated)
    hold("movements", (), saga.movements)
    hold("account", before, world.tables.account(CURRENT))
    world.screen.fact(f"{saga.phase}, cause {saga.cause}: no effect, no movement, the account is untouched.")


async def _asked(world: World, name: str) -> Posting:
    """Post an intent that has to wait, and show that nothing is held meanwhile."""
    before = world.tables.account(CURRENT)
    posting = world.posting(name)
    envelope = await world.post(posting)

    hold("status code", 202, envelope.status_code)
    hold_outcome(envelope, Outcome.PENDING)
    saga, account = world.saga(posting), world.tables.account(CURRENT)
    asked = world.tables.rows(
        "select step_id, duty from backstay.approval_requests where intent_key = %s order by step_id",
        (posting.intent_key,),
    )
    hold("asked", [{"step_id": "debit", "duty": "ONE"}, {"step_id": "freeze", "duty": "ONE"}], asked)
    hold("effects while people are asked", {}, saga.execute)
    hold("held amount while people are asked", before.held_cents, account.held_cents)
    hold("nothing is held", 0, account.held_cents)
    world.screen.fact(
        f"Waiting: {len(saga.execute)} effects, {cents(account.held_cents)} held,"
        f" {cents(account.balance_cents - account.held_cents)} available."
    )
    return posting

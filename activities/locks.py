"""Taking semantic locks inside the transaction of a step, and taking them away.

All that a plan names outright is taken by the first step that writes, in one statement, all or nothing; what a binding
comes to, by its own step. Who has to wait is told so, keeps its place by a row of its own, and asks again: no
transaction and no worker is kept waiting. The rules are in `take_locks` (migration 0008); `docs/locks.md` tells them.
"""

import json
from typing import Any, Final, LiteralString

from activities.database import Database, Row, Transaction
from contracts.errors import SagaError
from contracts.locks import ASK_AGAIN, Lock
from contracts.plan import Plan
from contracts.reasons import Reason
from contracts.saga import StepCall

_TAKE: Final[LiteralString] = """
select verdict, resource, mode, held_by, after_seconds
from backstay.take_locks(%(intent_key)s, %(epoch)s, %(wanted)s::jsonb, %(wait_seconds)s)
"""
_TAKE_AWAY: Final[LiteralString] = """
select intent_id, mode, phase, parked, epoch from backstay.take_away(%s, %s, %s, %s)
"""
_IN_THE_WAY: Final[LiteralString] = """
select resource, wanted, intent_id, agent, principal, mode, is_held, phase, parked_reason
from backstay.lock_conflicts c
where waiting_key = %s and exists (
    select from backstay.counting_locks mine
    where mine.intent_key = c.waiting_key and mine.resource = c.resource and not mine.is_held)
order by ticket, resource limit 20
"""


class LockedError(SagaError):
    """A lock is not to be had; what was asked for travels along, so that a place in the queue can be taken."""

    def __init__(self, asked: dict[str, Any], answer: Row | None) -> None:
        """Tell who is in the way, and whether to ask again."""
        verdict = answer["verdict"] if answer is not None else "WAIT"
        details = {name: answer[name] for name in ("resource", "mode", "held_by")} if answer is not None else {}
        if verdict == "WAIT":
            details[ASK_AGAIN] = answer["after_seconds"] if answer is not None else 0.0
        super().__init__(Reason.RESOURCE_LOCKED, _message(verdict, details), details=details)
        self.asked = asked


async def take_locks(transaction: Transaction, plan: Plan, call: StepCall) -> None:
    """Hold all that a step needs until its intent ends, or raise LockedError. A plan without locks costs nothing."""
    if not plan.needs_locks:
        return
    asked = {
        "intent_key": call.claim.intent_key,
        "epoch": call.claim.epoch,
        "wanted": _wanted(plan.locks_for(call.step_id, call.arguments)),
        "wait_seconds": plan.lock_wait_seconds,
    }
    answer = await transaction.one(_TAKE, asked)
    if answer is None or answer["verdict"] != "HELD":
        raise LockedError(asked, answer)


async def queue_up(database: Database, locked: LockedError) -> LockedError:
    """Ask once more in a transaction of its own, the step's being rolled back: it keeps the place, or gives it up.

    What has become free meanwhile is held from here on, and the step is told to come again.
    """
    answer = await database.one(_TAKE, locked.asked)
    return LockedError(locked.asked, None if answer is None or answer["verdict"] == "HELD" else answer)


async def unlock(database: Database, resource: str, *, tenant: str, operator: str, reason: str) -> list[Row]:
    """Take an object away from whoever holds it; audited. Returns the intents that held it, with their new epoch.

    Raises SagaError(IN_PROGRESS) while a step of such an intent is being written.
    """
    return await database.all(_TAKE_AWAY, (resource, tenant, operator, reason))


async def in_the_way(database: Database, intent_key: str) -> list[Row]:
    """List who keeps a waiting intent from its locks, the oldest first."""
    return await database.all(_IN_THE_WAY, (intent_key,))


def _wanted(locks: tuple[Lock, ...]) -> str:
    return json.dumps([lock.model_dump(mode="json") for lock in locks])


def _message(verdict: str, details: dict[str, Any]) -> str:
    match verdict:
        case "TAKEN_AWAY":
            return f"The lock on {details['resource']} was taken away by an operator; nothing more is written under it."
        case "REFUSED":
            return f"{details['resource']} is locked {details['mode']} by {details['held_by']}; post it again later."
        case _ if "resource" not in details:
            return "What was locked has become free; the step comes again at once."
        case _:
            return f"{details['resource']} is locked {details['mode']} by {details['held_by']}; it waits its turn."

"""The smallest hand-written saga: what a good engineer writes from Temporal's samples for freeze-then-debit.

Idempotent by key (a key row inserted first in the business transaction, with the stored response), each compensation
registered before its step, undone in reverse in an `except`. `PurchaseSaga` runs its activities as the samples do;
`LocalPurchaseSaga` is the same code with local activities.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from temporalio import activity, workflow
from temporalio.exceptions import ActivityError, ApplicationError

if TYPE_CHECKING:
    from activities.database import Database

with workflow.unsafe.imports_passed_through():
    from bench import ledger
    from contracts.errors import SagaError

TIMEOUT = timedelta(seconds=10)


@dataclass
class Purchase:
    """A chain of freezes and debits on one account; `refused` adds a reversal that the ledger refuses."""

    order_id: str
    principal: str
    account_id: str
    steps: int
    refused: bool


@dataclass
class Call:
    """One activity's input: its idempotency key, who, and the account, the hold or the movement."""

    step_key: str
    principal: str
    object_id: str


@dataclass
class Receipt:
    """How the purchase ended."""

    outcome: str
    objects: list[str]


class LedgerActivities:
    """The activities, on one pool of connections."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @activity.defn
    async def freeze(self, call: Call) -> str:
        """Hold the amount."""
        return await ledger.freeze(self._database, call.step_key, call.principal, call.object_id)

    @activity.defn
    async def debit(self, call: Call) -> str:
        """Capture the hold; a refusal is not retried."""
        try:
            return await ledger.debit(self._database, call.step_key, call.principal, call.object_id)
        except SagaError as error:
            raise ApplicationError(
                str(error), type=error.reason.value, non_retryable=not error.reason.is_transient
            ) from error

    @activity.defn
    async def reverse(self, call: Call) -> None:
        """Reverse the movement; a refusal is not retried."""
        try:
            await ledger.reverse(self._database, call.step_key, call.principal, call.object_id)
        except SagaError as error:
            raise ApplicationError(
                str(error), type=error.reason.value, non_retryable=not error.reason.is_transient
            ) from error

    @activity.defn
    async def release(self, call: Call) -> None:
        """Release the hold."""
        await ledger.release(self._database, call.step_key, call.principal, call.object_id)

    @activity.defn
    async def refund(self, call: Call) -> None:
        """Refund the capture."""
        await ledger.refund(self._database, call.step_key, call.principal, call.object_id)


Run = Callable[[str, Call], Awaitable[Any]]


async def _ordinary(name: str, call: Call) -> Any:  # noqa: ANN401 - as Temporal's own
    return await workflow.execute_activity(name, call, start_to_close_timeout=TIMEOUT)


async def _local(name: str, call: Call) -> Any:  # noqa: ANN401 - as Temporal's own
    return await workflow.execute_local_activity(name, call, start_to_close_timeout=TIMEOUT)


async def _purchase(purchase: Purchase, run: Run) -> Receipt:
    undo: list[tuple[str, Call]] = []
    objects: list[str] = []
    hold_id = ""
    try:
        for number in range(purchase.steps):
            step_key = f"{purchase.order_id}/{number}"
            if number % 2 == 0:
                call = Call(step_key, purchase.principal, purchase.account_id)
                undo.append(("release", call))
                hold_id = await run("freeze", call)
                objects.append(hold_id)
            else:
                call = Call(step_key, purchase.principal, hold_id)
                undo.append(("refund", call))
                objects.append(await run("debit", call))
        if purchase.refused:
            undo.append(("", Call("", "", "")))
            await run("reverse", Call(f"{purchase.order_id}/{purchase.steps}", purchase.principal, objects[-1]))
    except (ActivityError, ApplicationError) as error:
        if _is_refusal(error):
            undo.pop()  # it was decided: the step itself left nothing
        for name, call in reversed(undo):
            await run(name, call)
        return Receipt("COMPENSATED", objects)
    return Receipt("COMMITTED", objects)


def _is_refusal(error: ActivityError | ApplicationError) -> bool:
    cause = error.cause if isinstance(error, ActivityError) else error
    return isinstance(cause, ApplicationError) and cause.non_retryable


@workflow.defn
class PurchaseSaga:
    """The saga with ordinary activities."""

    @workflow.run
    async def run(self, purchase: Purchase) -> Receipt:
        """Carry the purchase out, or undo it."""
        return await _purchase(purchase, _ordinary)


@workflow.defn
class LocalPurchaseSaga:
    """The saga with local activities."""

    @workflow.run
    async def run(self, purchase: Purchase) -> Receipt:
        """Carry the purchase out, or undo it."""
        return await _purchase(purchase, _local)

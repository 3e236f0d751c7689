"""Small words that several scenes share: amounts as people read them, outcomes held against envelopes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contracts.envelope import Cause, Outcome
from worker.demo.claims import hold

if TYPE_CHECKING:
    from collections.abc import Iterable

    from contracts.envelope import Envelope


def cents(amount_cents: int) -> str:
    """Write cents as euros."""
    return f"{amount_cents / 100:,.2f} EUR"


def steps_of(movements: Iterable[tuple[str, int]]) -> str:
    """Tell movements in their order."""
    return ", ".join(f"{operation.lower()} {cents(amount)}" for operation, amount in movements)


def hold_outcome(envelope: Envelope, outcome: Outcome, cause: Cause = Cause.NONE) -> None:
    """Hold what an envelope tells against what was promised. Raises DemoFailedError."""
    data = envelope.data or {}
    told = (data.get("outcome"), data.get("cause"))
    why = f" ({envelope.error.code}: {envelope.error.message})" if envelope.error else ""
    hold(f"outcome in the envelope{why}", (outcome.value, cause.value), told)

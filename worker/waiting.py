"""Waits for an intent by looking at the tables: no update, no signal, nothing in its history."""

import asyncio
import time
from typing import Final

from contracts.envelope import Envelope
from worker.answers import POLL_RUNNING_MS
from worker.door import Door

LOOK_SECONDS: Final = 0.25


async def at_rest(door: Door, tenant: str, intent_id: str, *, within_seconds: float) -> Envelope:
    """Show an intent once it has ended or rests until somebody acts, or as it stands when the time is over."""
    until = time.monotonic() + within_seconds
    while True:
        envelope = await door.show(tenant, intent_id)
        if envelope.meta.poll_after_ms != POLL_RUNNING_MS or time.monotonic() >= until:
            return envelope
        await asyncio.sleep(LOOK_SECONDS)

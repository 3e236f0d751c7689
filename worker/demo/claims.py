"""Claims: what a scene promises, held against what is there. The first one that does not hold ends the demo."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

WAIT_SECONDS_MAX: Final = 30.0
LOOK_EVERY_SECONDS: Final = 0.02


class DemoFailedError(Exception):
    """Something was not as promised; the text is the demo's last line."""


def hold(claim: str, expected: object, found: object) -> None:
    """Hold a claim against what was found. Raises DemoFailedError."""
    if expected != found:
        raise DemoFailedError(f"{claim}: expected {expected!r}, found {found!r}")


async def until(what: str, look: Callable[[], T | None], *, seconds: float = WAIT_SECONDS_MAX) -> T:
    """Look until there is something, and return it. Raises DemoFailedError when there is nothing in time."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not (found := look()):
        if asyncio.get_running_loop().time() > deadline:
            raise DemoFailedError(f"waited {seconds:.0f} seconds in vain for {what}")
        await asyncio.sleep(LOOK_EVERY_SECONDS)
    return found

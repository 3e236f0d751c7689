"""Fallbacks: the one other call that may stand for a step, once it is certain that the step never lands (ADR 0014).

In a plan it is a step of its own right behind the one that it stands for, with an id, a key, a grade and locks of its
own, and the same needs. A plan with fallbacks is several plans in one, its *lines*: each step runs, or its fallback
does. What is proved and graded is proved and graded for every line.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations
from typing import Final, Protocol, Self, TypeVar

from contracts.errors import ErrorInfo
from contracts.intent import FALLBACK_SUFFIX
from contracts.reasons import Reason

FALLBACKS_MAX: Final = 3
"""How many steps of an intent may have one: every line is proved."""
FENCED_FOR: Final = "fenced_for"
"""The detail of a SUPERSEDED that names the fallback which stands for the step already."""
_NO_OTHER_CALL: Final = frozenset(
    {
        Reason.APPROVAL_MISSING,
        Reason.DEADLINE_EXCEEDED,
        Reason.KILL_SWITCH_ON,
        Reason.RESOURCE_LOCKED,
        Reason.SUPERSEDED,
        Reason.INTENT_PARKED,
        Reason.RUN_STALE,
    }
)
"""Refusals that are about the intent, not about the call: another call would not be right either."""


class Replaceable(Protocol):
    """A step that may stand for another."""

    @property
    def step_id(self) -> str:
        """Its own id."""
        ...

    @property
    def stands_for(self) -> str | None:
        """The step whose fallback it is."""
        ...

    def in_place(self) -> Self:
        """Give the same call under the id of the step that it stands for."""
        ...


S = TypeVar("S", bound=Replaceable)


def fallback_id(step_id: str) -> str:
    """Id of a step's fallback; no step that an agent names has such a one."""
    return step_id + FALLBACK_SUFFIX


def lines(steps: Sequence[S]) -> Iterator[tuple[tuple[str, ...], tuple[S, ...]]]:
    """Go through the plans in one: which steps fell back, and all steps, each under the id that others know it by."""
    fallbacks = [step.stands_for for step in steps if step.stands_for is not None]
    for size in range(len(fallbacks) + 1):
        for fallen in combinations(fallbacks, size):
            yield fallen, line(steps, fallen)


def line(steps: Sequence[S], fallen: Collection[str]) -> tuple[S, ...]:
    """Choose, for each step, itself or (of those that fell back) its fallback in its place."""
    return tuple(
        step if step.stands_for is None else step.in_place()
        for step in steps
        if (step.step_id not in fallen if step.stands_for is None else step.stands_for in fallen)
    )


def may_fall_back(error: ErrorInfo) -> bool:
    """Whether a definite refusal, or the certainty that nothing landed, lets the fallback run."""
    if error.code is Reason.SUPERSEDED:
        return FENCED_FOR in error.details
    return error.code not in _NO_OTHER_CALL

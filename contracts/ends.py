"""Where a saga ends when something goes wrong: every fault at every step, by how that step's outcome gets known.

This is what `workflows.reducer` does, said without running it; `tests/unit/test_proof_agrees.py` drives the reducer
through every prefix and compares.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from contracts.base import Record
from contracts.envelope import Outcome
from contracts.prefixes import Mask, Order, bits
from contracts.saga import ParkReason
from contracts.tool import AnyContract, Dispatch, Idempotency, SideEffect


class Fault(StrEnum):
    """What goes wrong while a step runs, all that it waits for having landed."""

    REFUSED = "REFUSED"
    UNKNOWN_LANDED = "UNKNOWN_LANDED"
    UNKNOWN_NOT_LANDED = "UNKNOWN_NOT_LANDED"
    CRASH = "CRASH"
    CANCEL = "CANCEL"


class Settling(StrEnum):
    """How it gets known whether a step landed."""

    TRANSACTION = "TRANSACTION"
    """It lands in one transaction of our database: never unknown, run again under its key or fenced."""
    READING = "READING"
    """It only reads: nothing can land, read again."""
    SENT_AGAIN = "SENT_AGAIN"
    """Sent again under the same key, which gives the first answer."""
    LOOKED_UP = "LOOKED_UP"
    """Looked up by its key; sent again once it certainly did not land."""
    NOBODY_KNOWS = "NOBODY_KNOWS"
    """Neither: a lost answer is lost."""


class Way(StrEnum):
    """How the saga goes on from a fault."""

    FORWARD = "FORWARD"
    """The step lands in the end, and all others with it."""
    BACK = "BACK"
    """The step did not land; what landed before is compensated."""
    BACK_WITH = "BACK_WITH"
    """The step landed; it is compensated with what landed before."""
    INSTEAD = "INSTEAD"
    """The step certainly did not land: its fallback does, and all others with it."""
    FIRST = "FIRST"
    """The fallback had not begun: the step that it stands for is run again, and lands this time."""
    STUCK = "STUCK"
    """There is no way back any more: all that does not wait for the step lands, then a person is called."""
    HELD = "HELD"
    """Nobody can tell whether the step landed: all that does not wait for it lands, then a person is called."""
    HELD_BACK = "HELD_BACK"
    """Nobody can tell on the way back: what the step builds on stays, the rest is compensated, a person is called."""
    HALTED = "HALTED"
    """Nobody can tell whether there is a way back: nothing more runs, nothing is undone, a person is called."""


class End(Record):
    """Where a saga comes to rest: `undone` in groups, one after another; `live` is what stays in the world.

    `unknown` is the step that nobody can tell of, whatever the truth is.
    """

    way: Way
    when: str
    outcome: Outcome
    parked: str | None = None
    undone: tuple[tuple[str, ...], ...] = ()
    live: tuple[str, ...] = ()
    unknown: str | None = None


class Row(Record):
    """One fault at one step after one prefix. No ends: it cannot happen, and `says` tells why."""

    landed: tuple[str, ...]
    step_id: str
    fault: Fault
    ends: tuple[End, ...] = ()
    says: str = ""


Ways = Mapping[Fault, tuple[Way, ...]]
_LANDED: Final = {Fault.UNKNOWN_LANDED: True, Fault.UNKNOWN_NOT_LANDED: False}
NEVER_UNKNOWN: Final = {
    Settling.TRANSACTION: "its outcome is that of one transaction: run again or fenced, never unknown",
    Settling.READING: "it only reads: nothing can have landed",
}
UNKNOWN: Final = "OUTCOME_UNKNOWN"
_NO: Final = frozenset({Way.BACK, Way.STUCK})
_RESTING: Final = (Way.HELD, Way.HELD_BACK, Way.HALTED)
_WHEN: Final = {
    (Fault.REFUSED, Way.BACK): "it says no, or may not run any more",
    (Fault.REFUSED, Way.INSTEAD): "it says no, and its fallback runs",
    (Fault.CRASH, Way.FIRST): "its step is not fenced yet: it is run again, and lands this time",
    (Fault.CRASH, Way.INSTEAD): "it certainly did not land, and its fallback runs",
    (Fault.UNKNOWN_NOT_LANDED, Way.INSTEAD): "it is certain, and its fallback runs",
    (Fault.REFUSED, Way.STUCK): "it may not run any more, or its attempts run out",
    (Fault.CRASH, Way.FORWARD): "it is run again under its key, or its answer is found",
    (Fault.CRASH, Way.BACK): "it certainly did not land and may not be sent again",
    (Fault.CRASH, Way.BACK_WITH): "it landed, as the downstream says when told to drop it",
    (Fault.CRASH, Way.STUCK): "it certainly did not land and may not be sent again",
    (Fault.CANCEL, Way.FORWARD): "too late: the way back is shut",
    (Fault.CANCEL, Way.BACK): "it did not land",
    (Fault.CANCEL, Way.BACK_WITH): "it landed all the same",
    (Fault.UNKNOWN_LANDED, Way.FORWARD): "its answer is found",
    (Fault.UNKNOWN_LANDED, Way.BACK_WITH): "the downstream says so when told to drop it",
    (Fault.UNKNOWN_NOT_LANDED, Way.FORWARD): "it is sent again",
    (Fault.UNKNOWN_NOT_LANDED, Way.BACK): "it is certain and it may not be sent again",
    (Fault.UNKNOWN_NOT_LANDED, Way.STUCK): "it is certain and it may not be sent again",
}


def settling_of(contract: AnyContract) -> Settling:
    """Tell from a contract how its steps' outcomes get known."""
    if not contract.writes:
        return Settling.READING
    if contract.dispatch is Dispatch.DATABASE:
        return Settling.TRANSACTION
    return {
        Idempotency.NATIVE: Settling.SENT_AGAIN,
        Idempotency.HEADER: Settling.SENT_AGAIN,
        Idempotency.LOOKUP: Settling.LOOKED_UP,
        Idempotency.NONE: Settling.NOBODY_KNOWS,
    }[contract.idempotency]


def with_fallback(faults: Ways) -> Ways:
    """Add the way of a fallback wherever it gets certain, on the way forward, that the step did not land.

    The other ways stay: there are refusals that no other call helps against.
    """
    return MappingProxyType(
        {
            fault: _in_order({*taken, Way.INSTEAD}) if fault is not Fault.CANCEL and _NO & {*taken} else taken
            for fault, taken in faults.items()
        }
    )


def of_fallback(faults: Ways) -> Ways:
    """Add what a crash may do before the fallback has shut the key of its step: the step has its turn again."""
    return MappingProxyType(
        {fault: _in_order({*taken, Way.FIRST}) if fault is Fault.CRASH else taken for fault, taken in faults.items()}
    )


@lru_cache(maxsize=64)
def ways(settling: Settling, side_effect: SideEffect, *, can_drop: bool, past_pivot: bool) -> Ways:
    """Say for each fault at such a step which ways the saga may take; none where the fault cannot happen.

    `can_drop`: the downstream can be told never to carry the step out.
    """
    is_final = side_effect is SideEffect.IRREVERSIBLE
    no, landed = (Way.STUCK, Way.FORWARD) if past_pivot else (Way.BACK, Way.FORWARD if is_final else Way.BACK_WITH)
    if settling in NEVER_UNKNOWN:
        did_land = did_not = frozenset[Way]()
        crashed, cancelled = {Way.FORWARD}, {no} if settling is Settling.READING else {no, landed}
    else:
        dropped = can_drop and not past_pivot
        rests = Way.HALTED if is_final else Way.HELD_BACK
        unsettled = rests if dropped else Way.HELD
        asked = settling is not Settling.NOBODY_KNOWS
        did_land = frozenset({unsettled, *((Way.FORWARD,) if asked else ()), *((landed,) if dropped else ())})
        did_not = frozenset({unsettled, *((Way.FORWARD, no) if asked else ()), *((no,) if dropped else ())})
        crashed, cancelled = {*did_land, *did_not}, {no, landed, rests}
    return MappingProxyType(
        {
            Fault.REFUSED: (no,),
            Fault.UNKNOWN_LANDED: _in_order(did_land),
            Fault.UNKNOWN_NOT_LANDED: _in_order(did_not),
            Fault.CRASH: _in_order(crashed),
            Fault.CANCEL: (Way.FORWARD,) if past_pivot else _in_order(cancelled),
        }
    )


def _in_order(found: AbstractSet[Way]) -> tuple[Way, ...]:
    return tuple(way for way in Way if way in found)


def ends_of(  # noqa: PLR0917 - where, which step, which fault
    order: Order, ties: Sequence[Mask], landed: Mask, number: int, fault: Fault, taken: tuple[Way, ...]
) -> tuple[End, ...]:
    """Work out where each way leads; `ties` are for each step the independent ones on an object of its own."""
    return tuple(
        _held(order, ties, landed, number, fault, way) if way in _RESTING else _end(order, landed, number, fault, way)
        for way in taken
    )


def _end(order: Order, landed: Mask, number: int, fault: Fault, way: Way) -> End:
    itself, when = 1 << number, _WHEN[fault, way]
    if way is Way.FORWARD:
        live = order.names(order.writes & order.completed(landed | itself))
        return End(way=way, when=when, outcome=Outcome.COMMITTED, live=live)
    if way in (Way.INSTEAD, Way.FIRST):
        live = order.names(order.writes & order.completed(landed | order.places[number] & ~itself))
        return End(way=way, when=when, outcome=Outcome.COMMITTED, live=live)
    if way is Way.STUCK:
        live = order.names(_others(order, landed, number))
        return End(way=way, when=when, outcome=Outcome.PARKED, parked=ParkReason.STUCK_AFTER_PIVOT.value, live=live)
    undone = order.undo(landed | itself if way is Way.BACK_WITH else landed)
    return End(way=way, when=when, outcome=Outcome.COMPENSATED if undone else Outcome.NOT_APPLIED, undone=undone)


def _others(order: Order, landed: Mask, number: int) -> Mask:
    """All writes that do not wait for a step, nor stand in its place."""
    return order.writes & order.completed(landed) & ~order.places[number] & ~order.after[number]


def _held(  # noqa: PLR0917 - as above
    order: Order, ties: Sequence[Mask], landed: Mask, number: int, fault: Fault, way: Way
) -> End:
    """Leave a step open: what it may build on is never undone under it.

    Of independent steps on one object the later holds the earlier; which that is shows only when they run, so all of
    them are said to stay.
    """
    itself = 1 << number
    kept, gone = landed, 0
    if way is Way.HELD:
        kept = _others(order, landed, number)
    elif way is Way.HELD_BACK:
        kept, grown = 0, itself
        while kept != grown:
            kept = grown
            for other in bits(kept):
                grown |= (order.before[other] | ties[other]) & landed
        kept, gone = kept & landed, landed & ~kept
    return End(
        way=way,
        when="nobody can tell in time whether it landed",
        outcome=Outcome.PARKED,
        parked=UNKNOWN,
        undone=order.undo(gone),
        live=order.names(kept & order.writes | (itself if _LANDED.get(fault, False) else 0)),
        unknown=order.step_ids[number],
    )

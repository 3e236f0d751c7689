"""Semantic locks as data: what each step of a plan locks, and how a saga is told to wait for somebody else's.

A database transaction guards one write. A lock guards an object for a whole saga: nobody else acts on what may still
be undone. Where a write leaves something that everybody sees (a hold, a balance) no lock is needed: NONE.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from contracts.base import JsonObject, JsonValue, Record, as_object
from contracts.errors import ErrorInfo, SagaError
from contracts.reasons import Reason
from contracts.tool import LockMode, ResourceUse

ASK_AGAIN: Final = "ask_again_seconds"
"""The detail of a RESOURCE_LOCKED that is no refusal yet: the saga keeps its place and asks again after so long."""


class PlannedLock(Record):
    """What a step locks; `object_id` is None until the binding of `argument` resolves."""

    kind: str
    object_id: str | None = None
    argument: str | None = None
    mode: LockMode


class Lock(Record):
    """An object, how it is locked, and the steps of the plan that need it."""

    resource: str
    mode: LockMode
    step_ids: tuple[str, ...]


def planned_locks(
    uses: Iterable[ResourceUse], named: Mapping[str, JsonValue], whole: Mapping[str, str]
) -> tuple[PlannedLock, ...]:
    """List the locks of a step: of each object that an argument names or binds to, and of what it is part of.

    `named`: the arguments by name, bindings as they stand. `whole`: `kind:id` of what an object is part of.
    """
    found: list[PlannedLock] = []
    for use in uses:
        value = named[use.argument]
        if use.lock is LockMode.NONE or value is None:
            continue
        if not isinstance(value, str):
            found.append(PlannedLock(kind=use.kind, argument=use.argument, mode=use.lock))
            continue
        found.append(PlannedLock(kind=use.kind, object_id=value, mode=use.lock))
        if (around := whole.get(f"{use.kind}:{value}")) is not None:
            kind, _, object_id = around.partition(":")
            found.append(PlannedLock(kind=kind, object_id=object_id, mode=use.lock))
    return tuple(found)


def locks_of(planned: Mapping[str, tuple[PlannedLock, ...]], step_id: str, arguments: JsonObject) -> tuple[Lock, ...]:
    """Collect what must be held when a step writes: everything known before the first write, and its own bindings.

    One lock for each object, in the strongest mode that is asked for, sorted by name.
    """
    modes: dict[str, LockMode] = {}
    steps: dict[str, set[str]] = {}
    for owner, locks in planned.items():
        for lock in locks:
            object_id: JsonValue = lock.object_id
            if object_id is None and owner == step_id and lock.argument is not None:
                object_id = _value_at(arguments, lock.argument)
            if not isinstance(object_id, str):
                continue
            resource = f"{lock.kind}:{object_id}"
            if modes.get(resource) is not LockMode.EXCLUSIVE:
                modes[resource] = lock.mode
            steps.setdefault(resource, set()).add(owner)
    return tuple(
        Lock(resource=resource, mode=modes[resource], step_ids=tuple(sorted(steps[resource])))
        for resource in sorted(modes)
    )


def asks_again_after(error: ErrorInfo) -> float | None:
    """Say after how many seconds to ask again for a lock that somebody else has; None for anything else."""
    seconds = error.details.get(ASK_AGAIN) if error.code is Reason.RESOURCE_LOCKED else None
    return float(seconds) if isinstance(seconds, int | float) else None


def taken_away(resource: str) -> SagaError:
    """Say that an operator took a lock away, under which something may have been written."""
    message = f"The lock on {resource} was taken away by an operator; nothing more is written under it."
    return SagaError(Reason.RESOURCE_LOCKED, message, details={"resource": resource})


def _value_at(arguments: JsonObject, name: str) -> Any:  # noqa: ANN401 - a JSON value
    value: JsonValue = arguments
    for part in name.split("."):
        value = (as_object(value) or {}).get(part)
    return value

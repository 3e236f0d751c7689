"""What a contract has to say about a write that happens over a wire, where its outcome may be unknown."""

import re
from collections.abc import Iterator
from typing import Final

from contracts.tool import DAY_SECONDS, AnyContract, Dispatch, SideEffect

DOWNSTREAM: Final = re.compile(r"^[a-z][a-z0-9-]{0,39}$")
COMPENSATIONS_PER_MINUTE_MAX: Final = 10_000
SEND_WITHIN_SECONDS_MAX: Final = 5.0
_FIELDS: Final = (
    "downstream",
    "key_lifetime_seconds",
    "in_flight_seconds",
    "patience_seconds",
    "cancel_by_key",
    "compensations_per_minute",
)


def send_within(contract: AnyContract) -> float:
    """How soon after its attempt was noted a request has to leave: its window is counted from there."""
    return min(contract.timeout_seconds, SEND_WITHIN_SECONDS_MAX)


def check_remote(contract: AnyContract) -> Iterator[str]:
    """List what is wrong with the times and promises of a remote tool, each line saying what to change."""
    if not contract.is_remote:
        kind = "writes nothing" if contract.dispatch is Dispatch.REMOTE else "writes in our database"
        for name in _FIELDS:
            if getattr(contract, name):
                yield f"it {kind}, where no outcome is unknown: take {name} away"
        return
    if DOWNSTREAM.fullmatch(contract.downstream) is None:
        yield "it is REMOTE: name the system that it calls in downstream, in lower case"
    yield from _check_times(contract)
    most = contract.compensations_per_minute
    if contract.side_effect is SideEffect.REVERSIBLE:
        if not 1 <= most <= COMPENSATIONS_PER_MINUTE_MAX:
            yield f"compensations_per_minute is {most}; use 1 to {COMPENSATIONS_PER_MINUTE_MAX}"
    elif most:
        yield f"it is {contract.side_effect} and is never compensated: take compensations_per_minute away"


def _check_times(contract: AnyContract) -> Iterator[str]:
    if not contract.timeout_seconds <= contract.in_flight_seconds <= DAY_SECONDS:
        yield (
            f"in_flight_seconds is {contract.in_flight_seconds}; use at least timeout_seconds"
            f" ({contract.timeout_seconds:g}) and at most {DAY_SECONDS}"
        )
    if not contract.in_flight_seconds <= contract.patience_seconds <= DAY_SECONDS:
        yield (
            f"patience_seconds is {contract.patience_seconds}; use at least in_flight_seconds"
            f" ({contract.in_flight_seconds}) and at most {DAY_SECONDS}"
        )
    if contract.idempotency.knows_keys:
        if contract.key_lifetime_seconds <= contract.in_flight_seconds:
            yield (
                f"key_lifetime_seconds is {contract.key_lifetime_seconds}; a downstream has to know a key for longer"
                f" than in_flight_seconds ({contract.in_flight_seconds})"
            )
    elif contract.key_lifetime_seconds:
        yield f"idempotency is {contract.idempotency}, which knows no keys: take key_lifetime_seconds away"

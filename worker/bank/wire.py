"""What goes over the bank's wire. A provider's API is its own: nothing here is shared with who calls it."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

AMOUNT_CENTS_MAX: Final = 100_000_000_000
MILLISECONDS_MAX: Final = 600_000
TIMES_MAX: Final = 1_000_000
AmountCents = Annotated[int, Field(strict=True, gt=0, le=AMOUNT_CENTS_MAX)]
Key = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:/-]{1,128}$")]


class Wire(BaseModel):
    """Closed; numbers are strict: a provider that guesses what was meant moves wrong money."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Currency(StrEnum):
    """Currencies in which the bank moves money."""

    EUR = "EUR"
    USD = "USD"
    GBP = "GBP"
    CNY = "CNY"


class Kind(StrEnum):
    """What an order moves: money out to a payee, in from a card, or back to a charged card."""

    PAYOUT = "PAYOUT"
    CHARGE = "CHARGE"
    REFUND = "REFUND"


class Reference(Wire):
    """The words that stand on a statement, and what the customer's own books call the order."""

    reference: Annotated[str, Field(max_length=140)] = ""
    client_reference: Annotated[str, Field(max_length=64)] = ""


class PayoutOrder(Reference):
    """Send money from an account at this bank to a payee."""

    account_id: Annotated[str, Field(pattern=r"^B[0-9]{8}$")]
    payee_id: Annotated[str, Field(pattern=r"^P[0-9]{8}$")]
    amount_cents: AmountCents
    currency: Currency


class ChargeOrder(Reference):
    """Take money from a card."""

    card_id: Annotated[str, Field(pattern=r"^K[0-9]{8}$")]
    amount_cents: AmountCents
    currency: Currency


class RefundOrder(Reference):
    """Give a charge back: so much, or all that is left of it when no amount is said."""

    charge_id: Annotated[str, Field(pattern=r"^BK[0-9]{10}$")]
    amount_cents: AmountCents | None = None
    currency: Currency


class Movement(Wire):
    """Money that moved. `party`: the payee, the card, or the charge that is given back; `account_id`: what paid out."""

    movement_id: str
    kind: Kind
    key: str
    party: str
    account_id: str | None
    amount_cents: int
    currency: Currency
    reference: str
    client_reference: str
    landed_at: datetime


class KeyStatus(StrEnum):
    """What became of a key. ABSENT: the bank has never met it, or only outside of its lifetime and in vain."""

    ABSENT = "ABSENT"
    PENDING = "PENDING"
    LANDED = "LANDED"
    DECLINED = "DECLINED"


class KeyAnswer(Wire):
    """All that the bank knows of a key, now. `fenced`: nothing (more) can land under it, ever."""

    key: str
    status: KeyStatus
    fenced: bool
    movements: tuple[Movement, ...]
    refunded_cents: int
    """Of a charge: what was given back of it by whomever."""
    may_still_land_until: datetime | None
    """While PENDING; null otherwise: what the bank has not received it cannot promise anything about."""
    now: datetime


class FenceOrder(Wire):
    """Forbid a key."""

    key: Key


class ErrorCode(StrEnum):
    """Why the bank did not do it."""

    INVALID = "INVALID"
    NOT_FOUND = "NOT_FOUND"
    KEY_REUSED = "KEY_REUSED"
    KEY_FENCED = "KEY_FENCED"
    IN_PROGRESS = "IN_PROGRESS"
    DECLINED = "DECLINED"
    NOTHING_LEFT = "NOTHING_LEFT"
    TOO_MANY = "TOO_MANY"
    UNAVAILABLE = "UNAVAILABLE"

    @property
    def status_code(self) -> int:
        """HTTP status of this error."""
        return _STATUS_CODES[self]


_STATUS_CODES: Final = {
    ErrorCode.INVALID: 400,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.KEY_REUSED: 422,
    ErrorCode.KEY_FENCED: 410,
    ErrorCode.IN_PROGRESS: 409,
    ErrorCode.DECLINED: 402,
    ErrorCode.NOTHING_LEFT: 402,
    ErrorCode.TOO_MANY: 429,
    ErrorCode.UNAVAILABLE: 503,
}


class ErrorAnswer(Wire):
    """The bank did not do it."""

    code: ErrorCode
    message: str


class SwitchName(StrEnum):
    """What can go wrong, on demand."""

    SLOW = "slow"
    """Does it `milliseconds` later, then answers."""
    DROP_REPLY = "drop_reply"
    """Does it, sends half of the reply and hangs up."""
    DROP_REQUEST = "drop_request"
    """Hangs up; nothing was done."""
    LANDS_LATE = "lands_late"
    """Accepts (202) and does it `milliseconds` later; with drop_reply the acceptance is cut too."""
    ARRIVES_LATE = "arrives_late"
    """Hangs up; the order was on its way somewhere and arrives `milliseconds` later, unknown until then."""
    TOO_MANY = "too_many"
    """429 with Retry-After; nothing was done."""
    UNAVAILABLE = "unavailable"
    """503 with Retry-After; nothing was done."""
    CONFLICT = "conflict"
    """409: says that an order with this key is in progress; nothing was done."""
    GARBAGE = "garbage"
    """Does it, and answers 200 with a body that is no answer."""
    WRONG_AMOUNT = "wrong_amount"
    """Does it, and echoes one cent more."""
    BOOKS_WRONG = "books_wrong"
    """Does it with one cent more, and echoes what was ordered."""
    REFUNDED_ELSEWHERE = "refunded_elsewhere"
    """Does it, and somebody else gives one cent of it back at once; for charges."""
    LOOKUP_DOWN = "lookup_down"
    """Lookups hang up."""


class Door(StrEnum):
    """Where a switch applies."""

    PAYOUTS = "payouts"
    CHARGES = "charges"
    REFUNDS = "refunds"
    ENTRIES = "entries"
    CANCEL = "cancel"


class Switch(Wire):
    """One thing that goes wrong now: for the next `times` requests, or (null) until it is switched off (0)."""

    times: Annotated[int, Field(strict=True, ge=0, le=TIMES_MAX)] | None = None
    milliseconds: Annotated[int, Field(strict=True, ge=0, le=MILLISECONDS_MAX)] = 1_000
    retry_after: Annotated[str, Field(max_length=64, pattern=r"^[ -~]*$")] = "1"
    """Sent as it is: a broken one must be possible. Empty: no such header."""
    on: tuple[Door, ...] = ()
    """Where; empty: lookup_down at entries, everything else at payouts, charges and refunds."""


class ClockOrder(Wire):
    """Move the bank's clock forward: a key's lifetime passes without waiting for it."""

    advance_seconds: Annotated[int, Field(strict=True, gt=0, le=10 * 366 * 86_400)]

"""The words, bounds and field types that the ledger's tools share; each is told to agents with an example."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import AwareDatetime, Field

AMOUNT_CENTS_MAX: Final = 100_000_000_000
"""One billion in the main unit: far above any real amount, far below 2^53 - 1, so sums stay exact in JSON."""
BALANCE_CENTS_MAX: Final = 2**53 - 1
MEMO_CHARACTERS_MAX: Final = 140
HOLD_TTL_SECONDS_DEFAULT: Final = 7 * 86_400
HOLD_TTL_SECONDS_MAX: Final = 30 * 86_400
REFUND_WINDOW_DAYS: Final = 180
SYSTEM_PREFIX: Final = "S"
SENSITIVE: Final = frozenset({"memo"})
OWNER: Final = "payments"


class Currency(StrEnum):
    """ISO 4217 currencies with two decimals, in which accounts are kept."""

    EUR = "EUR"
    USD = "USD"
    GBP = "GBP"
    CNY = "CNY"


class AccountState(StrEnum):
    """FROZEN: no new holds or debits, everything older goes on. CLOSED: nothing moves, for ever."""

    ACTIVE = "ACTIVE"
    FROZEN = "FROZEN"
    CLOSED = "CLOSED"


class CaptureState(StrEnum):
    """REFUNDING: partly given back."""

    CAPTURED = "CAPTURED"
    REFUNDING = "REFUNDING"
    REFUNDED = "REFUNDED"


class OperationType(StrEnum):
    """What a movement is; constant for each tool, so that books can be read without knowing the tools."""

    OPENING = "OPENING"
    CAPTURE = "CAPTURE"
    CREDIT = "CREDIT"
    TRANSFER = "TRANSFER"
    REFUND = "REFUND"
    REVERSAL = "REVERSAL"
    ADJUSTMENT = "ADJUSTMENT"


class HoldReason(StrEnum):
    """Why money is set aside."""

    PURCHASE = "PURCHASE"
    BOOKING = "BOOKING"
    DEPOSIT = "DEPOSIT"
    RISK_REVIEW = "RISK_REVIEW"


class PaymentReason(StrEnum):
    """Why money is set aside for a payee, and taken for it."""

    PURCHASE = "PURCHASE"
    BOOKING = "BOOKING"


class DebitReason(StrEnum):
    """Why held money is taken."""

    PURCHASE = "PURCHASE"
    BOOKING = "BOOKING"
    FEE = "FEE"
    PENALTY = "PENALTY"


class CreditReason(StrEnum):
    """Why a customer gets money from the tenant."""

    TOP_UP = "TOP_UP"
    CASHBACK = "CASHBACK"
    GOODWILL = "GOODWILL"
    INTEREST = "INTEREST"


class TransferReason(StrEnum):
    """Why a customer moves money to a customer."""

    OWN_ACCOUNTS = "OWN_ACCOUNTS"
    PAYMENT = "PAYMENT"
    GIFT = "GIFT"
    LOAN_REPAYMENT = "LOAN_REPAYMENT"


class RefundReason(StrEnum):
    """Why a captured debit is given back."""

    CUSTOMER_REQUEST = "CUSTOMER_REQUEST"
    GOODS_RETURNED = "GOODS_RETURNED"
    SERVICE_NOT_PROVIDED = "SERVICE_NOT_PROVIDED"
    DUPLICATE_CHARGE = "DUPLICATE_CHARGE"
    FRAUD = "FRAUD"


class ReversalReason(StrEnum):
    """Why a movement should never have been."""

    WRONG_ACCOUNT = "WRONG_ACCOUNT"
    WRONG_AMOUNT = "WRONG_AMOUNT"
    DUPLICATE_MOVEMENT = "DUPLICATE_MOVEMENT"
    FRAUD = "FRAUD"


class AdjustmentReason(StrEnum):
    """Why a balance is corrected."""

    ROUNDING = "ROUNDING"
    MISPOSTING = "MISPOSTING"
    WRITE_OFF = "WRITE_OFF"
    FEE_CORRECTION = "FEE_CORRECTION"


class LockReason(StrEnum):
    """Why an account is locked."""

    SUSPECTED_FRAUD = "SUSPECTED_FRAUD"
    CUSTOMER_REQUEST = "CUSTOMER_REQUEST"
    LEGAL_ORDER = "LEGAL_ORDER"
    COMPLIANCE_REVIEW = "COMPLIANCE_REVIEW"


class UnlockReason(StrEnum):
    """Why an account is unlocked."""

    FRAUD_RULED_OUT = "FRAUD_RULED_OUT"
    CUSTOMER_REQUEST = "CUSTOMER_REQUEST"
    LEGAL_ORDER_LIFTED = "LEGAL_ORDER_LIFTED"
    REVIEW_COMPLETED = "REVIEW_COMPLETED"


class Direction(StrEnum):
    """Which way an adjustment goes, seen from the customer."""

    CREDIT = "CREDIT"
    DEBIT = "DEBIT"


COMPENSATION_REASON: Final = "SAGA_COMPENSATION"
"""`reason_code` of a movement that a compensation booked; no tool accepts it."""

CustomerAccountId = Annotated[
    str,
    Field(
        pattern=r"^A[0-9]{8}$",
        description="Customer account: A and eight digits; looked up, not invented; an unknown one: OBJECT_NOT_FOUND.",
        examples=["A00000017"],
    ),
]
SystemAccountId = Annotated[
    str,
    Field(
        pattern=r"^S[0-9]{8}$",
        description="System account of the tenant: S and eight digits; an unknown one: OBJECT_NOT_FOUND.",
        examples=["S00000001"],
    ),
]
AnyAccountId = Annotated[
    str,
    Field(
        pattern=r"^[AS][0-9]{8}$",
        description="Account: A (customer) or S (system) and eight digits; an unknown one: OBJECT_NOT_FOUND.",
        examples=["S00000001"],
    ),
]
HoldId = Annotated[
    str,
    Field(
        pattern=r"^H[0-9]{10}$",
        description="Hold, as freeze_account_funds returned it: H and ten digits; an unknown one: OBJECT_NOT_FOUND.",
        examples=["H0000000042"],
    ),
]
ReservationId = Annotated[
    str,
    Field(
        pattern=r"^H[0-9]{10}$",
        description="Reservation: the hold that keeps it, H and ten digits; confirmed by the engine, not by a tool.",
        examples=["H0000000042"],
    ),
]
CaptureId = Annotated[
    str,
    Field(
        pattern=r"^C[0-9]{10}$",
        description="Capture, as debit_frozen_funds returned it: C and ten digits; an unknown one: OBJECT_NOT_FOUND.",
        examples=["C0000000042"],
    ),
]
MovementId = Annotated[
    str,
    Field(
        pattern=r"^M[0-9]{10}$",
        description="Movement, as its tool returned it: M and ten digits; an unknown one: OBJECT_NOT_FOUND.",
        examples=["M0000000042"],
    ),
]
AmountCents = Annotated[
    int,
    Field(
        gt=0,
        le=AMOUNT_CENTS_MAX,
        description="Amount in cents, a whole JSON number from 1 to 100000000000; 1.0, text or 0: ARGUMENTS_INVALID.",
        examples=[2500],
    ),
]
CurrencyCode = Annotated[
    Currency,
    Field(description="Currency of the amount; must be the account's, else CURRENCY_MISMATCH.", examples=["EUR"]),
]
BalanceCents = Annotated[
    int,
    Field(ge=0, le=BALANCE_CENTS_MAX, description="Cents, a whole JSON number of at least 0.", examples=[97500]),
]
Memo = Annotated[
    str,
    Field(
        max_length=MEMO_CHARACTERS_MAX,
        pattern=r"^[^\x00]*$",
        description=(
            "Text for the statement, at most 140 characters, kept exactly as sent (no U+0000). "
            "Missing or null: none; an empty text is kept as an empty text."
        ),
        examples=["Order 4711"],
    ),
]
TransactionId = Annotated[
    int,
    Field(ge=1, le=2**53 - 1, description="Serial number of an effect, as its step answered it.", examples=[4711]),
]
HoldTtlSeconds = Annotated[
    int,
    Field(
        ge=1,
        le=HOLD_TTL_SECONDS_MAX,
        description="How long the hold lasts, in seconds, 1 to 2592000 (30 days); 604800 (7 days) when missing.",
        examples=[3600],
    ),
]
Moment = Annotated[AwareDatetime, Field(description="A moment in UTC, by the database's clock.")]

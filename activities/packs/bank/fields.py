"""The words, bounds and field types of the bank's tools; each is told to agents with an example."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

AMOUNT_CENTS_MAX: Final = 100_000_000_000
MEMO_CHARACTERS_MAX: Final = 140
SENSITIVE: Final = frozenset({"memo"})
OWNER: Final = "payments"
DOWNSTREAM: Final = "bank"


class Currency(StrEnum):
    """ISO 4217 currencies with two decimals, in which the bank moves money."""

    EUR = "EUR"
    USD = "USD"
    GBP = "GBP"
    CNY = "CNY"


class PayoutReason(StrEnum):
    """Why money is sent out."""

    WITHDRAWAL = "WITHDRAWAL"
    SUPPLIER_INVOICE = "SUPPLIER_INVOICE"
    CLAIM_SETTLEMENT = "CLAIM_SETTLEMENT"


class ChargeReason(StrEnum):
    """Why a card is charged."""

    PURCHASE = "PURCHASE"
    BOOKING = "BOOKING"
    TOP_UP = "TOP_UP"


class RefundReason(StrEnum):
    """Why a charge is given back."""

    CUSTOMER_REQUEST = "CUSTOMER_REQUEST"
    GOODS_RETURNED = "GOODS_RETURNED"
    SERVICE_NOT_PROVIDED = "SERVICE_NOT_PROVIDED"
    DUPLICATE_CHARGE = "DUPLICATE_CHARGE"


BankAccountId = Annotated[
    str,
    Field(
        pattern=r"^B[0-9]{8}$",
        description="Account at the bank that pays: B and eight digits; an unknown one: OBJECT_NOT_FOUND.",
        examples=["B00000001"],
    ),
]
PayeeId = Annotated[
    str,
    Field(
        pattern=r"^P[0-9]{8}$",
        description="Payee as registered: P and eight digits; never invented; an unknown one: OBJECT_NOT_FOUND.",
        examples=["P00000017"],
    ),
]
CardId = Annotated[
    str,
    Field(
        pattern=r"^K[0-9]{8}$",
        description="Card as registered: K and eight digits; never invented; an unknown one: OBJECT_NOT_FOUND.",
        examples=["K00000017"],
    ),
]
ChargeId = Annotated[
    str,
    Field(
        pattern=r"^BK[0-9]{10}$",
        description="Charge, as charge_bank_card returned it: BK and ten digits; an unknown one: OBJECT_NOT_FOUND.",
        examples=["BK0000000042"],
    ),
]
BankMovementId = Annotated[
    str,
    Field(pattern=r"^BK[0-9]{10}$", description="The bank's own number of the movement.", examples=["BK0000000042"]),
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
    Field(description="Currency of the amount; must be the object's, else CURRENCY_MISMATCH.", examples=["EUR"]),
]
Memo = Annotated[
    str,
    Field(
        max_length=MEMO_CHARACTERS_MAX,
        pattern=r"^[^\x00]*$",
        description="Text for the statement, at most 140 characters, kept exactly as sent (no U+0000). Null: none.",
        examples=["Invoice 4711"],
    ),
]

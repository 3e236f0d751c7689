"""The ledger pack: customers' accounts, holds, captures and movements, on our own PostgreSQL."""

from typing import Final

from activities.packs.ledger.accounts import (
    ACCOUNT_RESOURCE,
    CHECK_ACCOUNT_BALANCE,
    LOCK_CUSTOMER_ACCOUNT,
    UNLOCK_CUSTOMER_ACCOUNT,
)
from activities.packs.ledger.adjustments import ADJUST_ACCOUNT_BALANCE
from activities.packs.ledger.captures import DEBIT_FROZEN_FUNDS
from activities.packs.ledger.holds import FREEZE_ACCOUNT_FUNDS, HOLD_RESOURCE, expire_holds
from activities.packs.ledger.movements import CREDIT_CUSTOMER_ACCOUNT, TRANSFER_CUSTOMER_FUNDS
from activities.packs.ledger.refunds import CAPTURE_RESOURCE, REFUND_CAPTURED_DEBIT
from activities.packs.ledger.reservations import RESERVE_CUSTOMER_PAYMENT
from activities.packs.ledger.reversals import MOVEMENT_RESOURCE, REVERSE_LEDGER_MOVEMENT
from activities.tool import Pack

__all__ = ["PACK", "expire_holds"]

PACK: Final = Pack(
    name="ledger",
    tools=(
        CHECK_ACCOUNT_BALANCE,
        FREEZE_ACCOUNT_FUNDS,
        DEBIT_FROZEN_FUNDS,
        RESERVE_CUSTOMER_PAYMENT,
        REFUND_CAPTURED_DEBIT,
        CREDIT_CUSTOMER_ACCOUNT,
        TRANSFER_CUSTOMER_FUNDS,
        REVERSE_LEDGER_MOVEMENT,
        ADJUST_ACCOUNT_BALANCE,
        LOCK_CUSTOMER_ACCOUNT,
        UNLOCK_CUSTOMER_ACCOUNT,
    ),
    resources={
        "account": ACCOUNT_RESOURCE,
        "hold": HOLD_RESOURCE,
        "capture": CAPTURE_RESOURCE,
        "movement": MOVEMENT_RESOURCE,
    },
)

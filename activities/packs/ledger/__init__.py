"""The ledger pack: customers' accounts, holds, captures and movements, on our own PostgreSQL."""

from typing import Final

from activities.packs.ledger.accounts import ACCOUNT_RESOURCE
from activities.packs.ledger.captures import DEBIT_FROZEN_FUNDS
from activities.packs.ledger.holds import FREEZE_ACCOUNT_FUNDS, HOLD_RESOURCE
from activities.packs.ledger.refunds import CAPTURE_RESOURCE, REFUND_CAPTURED_DEBIT
from activities.tool import Pack

PACK: Final = Pack(
    name="ledger",
    tools=(FREEZE_ACCOUNT_FUNDS, DEBIT_FROZEN_FUNDS, REFUND_CAPTURED_DEBIT),
    resources={"account": ACCOUNT_RESOURCE, "hold": HOLD_RESOURCE, "capture": CAPTURE_RESOURCE},
)

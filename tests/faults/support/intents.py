"""What the faults happen to: chains of the ledger, each on accounts of its own."""

from typing import Any, Final

MERCHANT: Final = "S00000001"
CASH: Final = "S00000002"
TENANT: Final = "demo-bank"
PRINCIPAL: Final = "demo-customer"
AGENT: Final = "demo-agent"
OPENED_CENTS: Final = 5_000_000
"""What every customer account has in the beginning."""
AMOUNT_CENTS: Final = 500
LARGE_CENTS: Final = 1_000_001
"""Over the threshold: it waits for one approver."""

FREEZE: Final = "freeze_account_funds@1"
DEBIT: Final = "debit_frozen_funds@1"
CREDIT: Final = "credit_customer_account@1"
TRANSFER: Final = "transfer_customer_funds@1"
RESERVE: Final = "reserve_customer_payment@1"
CONFIRM: Final = f"{RESERVE}.confirm"
ADMIT: Final = "admit_intent"
CLOSE: Final = "close_intent"
SETTLE: Final = "settle_intent"
DECIDE: Final = "admit_decision"
PARK: Final = "park_intent"
RESOLVE: Final = "admit_resolution"

Steps = list[dict[str, Any]]


def freeze(account: str, amount_cents: int = AMOUNT_CENTS, step_id: str = "freeze") -> dict[str, Any]:
    """Hold an amount."""
    return {
        "step_id": step_id,
        "tool": FREEZE,
        "arguments": {
            "account_id": account,
            "amount_cents": amount_cents,
            "currency": "EUR",
            "hold_ttl_seconds": 3600,
            "reason_code": "PURCHASE",
        },
    }


def debit(amount_cents: int = AMOUNT_CENTS, step_id: str = "debit", hold: str = "freeze") -> dict[str, Any]:
    """Capture a hold that an earlier step opened."""
    return {
        "step_id": step_id,
        "tool": DEBIT,
        "arguments": {
            "hold_id": {"$from": f"{hold}.hold_id"},
            "amount_cents": amount_cents,
            "currency": "EUR",
            "credit_account_id": MERCHANT,
            "reason_code": "PURCHASE",
        },
    }


def credit(account: str, amount_cents: int = AMOUNT_CENTS, step_id: str = "credit") -> dict[str, Any]:
    """Pay a customer."""
    return {
        "step_id": step_id,
        "tool": CREDIT,
        "arguments": {
            "account_id": account,
            "funding_account_id": CASH,
            "amount_cents": amount_cents,
            "currency": "EUR",
            "reason_code": "GOODWILL",
        },
    }


def transfer(source: str, target: str, amount_cents: int = AMOUNT_CENTS, step_id: str = "transfer") -> dict[str, Any]:
    """Move money between two of the principal's accounts."""
    return {
        "step_id": step_id,
        "tool": TRANSFER,
        "arguments": {
            "from_account_id": source,
            "to_account_id": target,
            "amount_cents": amount_cents,
            "currency": "EUR",
            "reason_code": "OWN_ACCOUNTS",
        },
    }


def reserve(account: str, amount_cents: int = AMOUNT_CENTS, step_id: str = "hotel") -> dict[str, Any]:
    """Set an amount aside for the merchant, to be confirmed."""
    return {
        "step_id": step_id,
        "tool": RESERVE,
        "arguments": {
            "account_id": account,
            "payee_account_id": MERCHANT,
            "amount_cents": amount_cents,
            "currency": "EUR",
            "reason_code": "BOOKING",
        },
    }


def reverse(amount_cents: int = AMOUNT_CENTS, step_id: str = "again", movement: str = "debit") -> dict[str, Any]:
    """Reverse the movement that an earlier step booked."""
    return {
        "step_id": step_id,
        "tool": "reverse_ledger_movement",
        "arguments": {
            "movement_id": {"$from": f"{movement}.movement_id"},
            "amount_cents": amount_cents,
            "currency": "EUR",
            "reason_code": "WRONG_AMOUNT",
        },
    }


def purchase(account: str, amount_cents: int = AMOUNT_CENTS) -> Steps:
    """The reference chain: hold, then capture."""
    return [freeze(account, amount_cents), debit(amount_cents)]


def doomed(account: str, amount_cents: int = AMOUNT_CENTS) -> Steps:
    """The reference chain, then a step that the ledger refuses: a capture is refunded, never reversed."""
    return [freeze(account, amount_cents), debit(amount_cents), reverse(amount_cents)]

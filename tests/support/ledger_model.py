"""The ledger as a few dictionaries would keep it, written from the rules and not from the statements."""

from dataclasses import dataclass

from contracts.reasons import Reason
from tests.support.ledger import Landed


@dataclass
class Account:
    """A customer's account as the model sees it."""

    account_id: str
    principal: str
    balance: int
    limit: int | None
    state: str = "ACTIVE"
    locked_by: int | None = None
    held: int = 0

    @property
    def available(self) -> int:
        """What may be spent."""
        return self.balance - self.held


@dataclass
class Hold:
    """A hold, and what became of it."""

    landed: Landed
    account: Account
    amount: int
    state: str = "OPEN"
    overdue: bool = False
    compensated: bool = False


@dataclass
class Capture:
    """A capture; `payee` is None for the merchant's system account."""

    landed: Landed
    account: Account
    payee: Account | None
    amount: int
    refunded: int = 0
    compensated: bool = False


@dataclass
class Movement:
    """A credit, transfer or adjustment; None is a system account."""

    landed: Landed
    payer: Account | None
    payee: Account | None
    amount: int
    adjusts: bool = False
    reversed: bool = False
    compensated: bool = False


@dataclass
class Lock:
    """A lock or unlock of an account; `number` is the lock it set or lifted."""

    landed: Landed
    account: Account
    sets: bool
    number: int | None


def why_not_turn(account: Account, state: str, principal: str) -> Reason | None:
    """Say why an account is not locked or unlocked."""
    if principal != account.principal:
        return Reason.NOT_OWNER
    return None if account.state == state else Reason.WRONG_STATE


def why_not_pay(account: Account, amount: int, principal: str) -> Reason | None:
    """Say why a new hold or transfer out of an account is refused."""
    if principal != account.principal:
        return Reason.NOT_OWNER
    if account.state != "ACTIVE":
        return Reason.WRONG_STATE
    if account.limit is not None and amount > account.limit:
        return Reason.LIMIT_EXCEEDED
    return Reason.FUNDS_INSUFFICIENT if amount > account.available else None


def why_not_give_back(payer: Account | None, payee: Account | None, amount: int) -> Reason | None:
    """Say why an older movement cannot be undone: closed accounts, spent money."""
    if any(account is not None and account.state == "CLOSED" for account in (payer, payee)):
        return Reason.WRONG_STATE
    return Reason.FUNDS_INSUFFICIENT if payer is not None and amount > payer.available else None


def pay(payer: Account | None, payee: Account | None, amount: int) -> None:
    """Move money in the model."""
    if payer is not None:
        payer.balance -= amount
    if payee is not None:
        payee.balance += amount

"""Accounts: what is available, and the lock that lets nothing new out."""

from typing import Final, LiteralString

from pydantic import Field

from activities.database import Row, Transaction
from activities.packs.ledger.fields import (
    OWNER,
    AccountState,
    BalanceCents,
    Currency,
    CurrencyCode,
    CustomerAccountId,
    LockReason,
    TransactionId,
    UnlockReason,
)
from activities.packs.ledger.refusals import OPEN_TO_CREDITS, race, read_accounts, require_object, require_state
from activities.tool import Compensated, StepContext, Tool
from contracts.base import Contract
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.tool import Access, Description, Duty, Example, LockMode, ResourceUse, SideEffect, ToolContract

ACCOUNT_RESOURCE: Final[LiteralString] = """
select account_id as object_id, tenant, principal, state, currency, limit_cents,
    balance_cents - held_cents as available_cents
from ledger.accounts where account_id = any(%s)
"""
"""`available_cents` is null for a system account: it always has enough."""

_READ: Final[LiteralString] = """
select tenant, principal, state, currency, balance_cents, held_cents, limit_cents
from ledger.accounts where account_id = %(account_id)s and principal is not null
"""

_LOCK: Final[LiteralString] = """
with locked as (
    update ledger.accounts set state = 'FROZEN', locked_by = %(transaction_id)s::bigint
    where account_id = %(account_id)s and tenant = %(tenant)s and principal = %(principal)s and state = 'ACTIVE'
    returning account_id
), noted as (
    insert into ledger.locks (transaction_id, tenant, account_id, reason_code)
    select %(transaction_id)s::bigint, %(tenant)s, account_id, %(reason_code)s from locked
)
select account_id from locked
"""

_UNLOCK: Final[LiteralString] = """
with account as materialized (
    select account_id, locked_by from ledger.accounts
    where account_id = %(account_id)s and tenant = %(tenant)s and principal = %(principal)s and state = 'FROZEN'
    for no key update
), unlocked as (
    update ledger.accounts a set state = 'ACTIVE', locked_by = null
    from account where a.account_id = account.account_id
), lifted as (
    update ledger.locks l set lifted_at = now() from account where l.transaction_id = account.locked_by
)
select locked_by from account
"""

_ACCOUNT: Final[LiteralString] = """
with account as materialized (
    select account_id, state, locked_by from ledger.accounts
    where account_id = %(account_id)s and tenant = %(tenant)s
    for no key update
)
"""
"""The account's row is always locked before the lock's: unlocking, lifting and relocking never deadlock."""

_REVOKE: Final[LiteralString] = (
    _ACCOUNT  # noqa: S608 - constants
    + """
, revoked as (
    update ledger.locks l set revoked_at = now() from account where l.transaction_id = %(locked_by)s::bigint
), unlocked as (
    update ledger.accounts a set state = 'ACTIVE', locked_by = null
    from account where a.account_id = account.account_id
        and account.state = 'FROZEN' and account.locked_by = %(locked_by)s::bigint
)
select state from account
"""
)

_RELOCK: Final[LiteralString] = (
    _ACCOUNT  # noqa: S608 - constants
    + """
, standing as materialized (
    select l.transaction_id from account join ledger.locks l on l.transaction_id = %(locked_by)s::bigint
    where l.revoked_at is null
    for no key update of l
), relocked as (
    update ledger.accounts a set state = 'FROZEN', locked_by = %(locked_by)s::bigint
    from account where a.account_id = account.account_id and account.state = 'ACTIVE'
        and (%(locked_by)s::bigint is null or exists (select from standing))
    returning a.locked_by
), reset as (
    update ledger.locks l set lifted_at = null from relocked where l.transaction_id = relocked.locked_by
)
select state from account
"""
)


class CheckAccountBalance(Contract):
    """Read one customer account."""

    account_id: CustomerAccountId


class CheckedAccountBalance(Contract):
    """The account as it is now; `available_cents` is the balance without what is held."""

    account_id: CustomerAccountId
    state: AccountState = Field(description="FROZEN: no new holds or debits.", examples=["ACTIVE"])
    currency: CurrencyCode
    balance_cents: BalanceCents
    held_cents: BalanceCents
    available_cents: BalanceCents
    limit_cents: BalanceCents | None = Field(
        description="Most that a single hold or transfer may take, in cents; null: no limit.", examples=[500000]
    )


class LockCustomerAccount(Contract):
    """Let no new hold or debit out of an account."""

    account_id: CustomerAccountId
    reason_code: LockReason = Field(description="Why the account is locked.", examples=["SUSPECTED_FRAUD"])


class LockedCustomerAccount(Contract):
    """The lock; only the unlock of exactly this lock is its compensation."""

    account_id: CustomerAccountId
    state: AccountState = Field(description="FROZEN.", examples=["FROZEN"])
    lock_transaction_id: TransactionId


class UnlockCustomerAccount(Contract):
    """Let holds and debits out of an account again."""

    account_id: CustomerAccountId
    reason_code: UnlockReason = Field(description="Why the account is unlocked.", examples=["FRAUD_RULED_OUT"])


class UnlockedCustomerAccount(Contract):
    """The account, and the lock that was lifted; null when it was not locked by a step."""

    account_id: CustomerAccountId
    state: AccountState = Field(description="ACTIVE.", examples=["ACTIVE"])
    lock_transaction_id: TransactionId | None


async def check(transaction: Transaction, step: CheckAccountBalance, context: StepContext) -> CheckedAccountBalance:
    """Read the account. Raises SagaError: OBJECT_NOT_FOUND, NOT_OWNER."""
    row = await transaction.one(_READ, {"account_id": step.account_id})
    account = require_object(row, "account", step.account_id, context)
    return CheckedAccountBalance(
        account_id=step.account_id,
        state=AccountState(account["state"]),
        currency=Currency(account["currency"]),
        balance_cents=account["balance_cents"],
        held_cents=account["held_cents"],
        available_cents=account["balance_cents"] - account["held_cents"],
        limit_cents=account["limit_cents"],
    )


async def lock(transaction: Transaction, step: LockCustomerAccount, context: StepContext) -> LockedCustomerAccount:
    """Make an ACTIVE account FROZEN and remember by which effect. Raises SagaError to refuse."""
    params = {
        "account_id": step.account_id,
        "tenant": context.tenant,
        "principal": context.principal,
        "transaction_id": context.transaction_id,
        "reason_code": step.reason_code.value,
    }
    if await transaction.one(_LOCK, params) is None:
        raise await _state_refusal(transaction, step.account_id, AccountState.ACTIVE, context)
    return LockedCustomerAccount(
        account_id=step.account_id, state=AccountState.FROZEN, lock_transaction_id=context.transaction_id
    )


async def unlock(
    transaction: Transaction, step: UnlockCustomerAccount, context: StepContext
) -> UnlockedCustomerAccount:
    """Make a FROZEN account ACTIVE, whoever locked it. Raises SagaError to refuse."""
    params = {"account_id": step.account_id, "tenant": context.tenant, "principal": context.principal}
    row = await transaction.one(_UNLOCK, params)
    if row is None:
        raise await _state_refusal(transaction, step.account_id, AccountState.FROZEN, context)
    return UnlockedCustomerAccount(
        account_id=step.account_id, state=AccountState.ACTIVE, lock_transaction_id=row["locked_by"]
    )


async def _state_refusal(
    transaction: Transaction, account_id: str, wanted: AccountState, context: StepContext
) -> SagaError:
    accounts = await read_accounts(transaction, account_id)
    account = require_object(accounts.get(account_id), "account", account_id, context)
    require_state(account, "account", account_id, {wanted})
    return race(account_id)


async def revoke(
    transaction: Transaction, step: LockCustomerAccount, output: LockedCustomerAccount | None, context: StepContext
) -> Compensated:
    """Take the lock away that this step set, for good. One that somebody else set since is left alone.

    Raises SagaError: WRONG_STATE (the account was closed meanwhile).
    """
    if output is None:  # a database tool's outcome is always known
        raise SagaError(Reason.OUTCOME_UNKNOWN, "The lock is not known; look the step up first.")
    params = {"account_id": step.account_id, "tenant": context.tenant, "locked_by": output.lock_transaction_id}
    _require_not_closed(await transaction.one(_REVOKE, params), step.account_id)
    return Compensated()


async def relock(
    transaction: Transaction,
    step: UnlockCustomerAccount,
    output: UnlockedCustomerAccount | None,
    context: StepContext,
) -> Compensated:
    """Set the lifted lock again, under its old number, unless its own step was compensated meanwhile.

    One that somebody else set since is left alone. Raises SagaError: WRONG_STATE (the account was closed meanwhile).
    """
    if output is None:  # a database tool's outcome is always known
        raise SagaError(Reason.OUTCOME_UNKNOWN, "The lifted lock is not known; look the step up first.")
    params = {"account_id": step.account_id, "tenant": context.tenant, "locked_by": output.lock_transaction_id}
    _require_not_closed(await transaction.one(_RELOCK, params), step.account_id)
    return Compensated()


def _require_not_closed(account: Row | None, account_id: str) -> None:
    if account is None:
        raise SagaError(
            Reason.OBJECT_NOT_FOUND,
            f"There is no account {account_id}; the ledger was changed by hand.",
            details={"account_id": account_id},
        )
    require_state(account, "account", account_id, OPEN_TO_CREDITS)


CHECK_ACCOUNT_BALANCE: Final = Tool(
    contract=ToolContract(
        name="check_account_balance",
        title="Check an account's balance",
        description=Description(
            does="Reads a customer account: state, balance, what is held and what is available.",
            use_when="a decision or a later step depends on how much money is there.",
            not_when="the money must still be there afterwards (freeze_account_funds).",
            needs="an account of the customer.",
            returns="amounts in cents as of now; another step may change them at any time.",
        ),
        side_effect=SideEffect.READ_ONLY,
        input=CheckAccountBalance,
        output=CheckedAccountBalance,
        reasons=(Reason.OBJECT_NOT_FOUND, Reason.NOT_OWNER),
        resources=(
            ResourceUse(
                argument="account_id",
                kind="account",
                access=Access.READ,
                states=frozenset({"ACTIVE", "FROZEN", "CLOSED"}),
            ),
        ),
        preconditions=("The account belongs to the principal.",),
        postconditions=("Nothing is changed.",),
        examples=(
            Example(utterance="How much is on my account?", arguments={"account_id": "A00000017"}),
            Example(utterance="Can A00000023 still pay 300 dollars?", arguments={"account_id": "A00000023"}),
        ),
        owner=OWNER,
    ),
    execute=check,
)

LOCK_CUSTOMER_ACCOUNT: Final = Tool(
    contract=ToolContract(
        name="lock_customer_account",
        title="Lock a customer account",
        description=Description(
            does="Makes an account FROZEN: no new holds or debits; releases, refunds, credits and captures go on.",
            use_when="nothing new may leave the account until somebody has looked.",
            not_when="only a certain amount is to be kept (freeze_account_funds).",
            needs="an ACTIVE account of the customer and why.",
            returns="the account's new state and the number of the lock.",
        ),
        side_effect=SideEffect.REVERSIBLE,
        input=LockCustomerAccount,
        output=LockedCustomerAccount,
        reasons=(Reason.OBJECT_NOT_FOUND, Reason.NOT_OWNER, Reason.WRONG_STATE),
        resources=(
            ResourceUse(
                argument="account_id",
                kind="account",
                access=Access.LOCK,
                states=frozenset({"ACTIVE"}),
                state_after="FROZEN",
                lock=LockMode.EXCLUSIVE,
            ),
        ),
        compensates_by="Unlocks the account, unless this lock was lifted before.",
        preconditions=("The account is ACTIVE and belongs to the principal.",),
        postconditions=("The account is FROZEN; balance and holds are unchanged.",),
        examples=(
            Example(
                utterance="My card was stolen, let nothing go off my account.",
                arguments={"account_id": "A00000017", "reason_code": "SUSPECTED_FRAUD"},
            ),
            Example(
                utterance="The court ordered A00000023 to be frozen.",
                arguments={"account_id": "A00000023", "reason_code": "LEGAL_ORDER"},
            ),
        ),
        owner=OWNER,
    ),
    execute=lock,
    compensate=revoke,
)

UNLOCK_CUSTOMER_ACCOUNT: Final = Tool(
    contract=ToolContract(
        name="unlock_customer_account",
        title="Unlock a customer account",
        description=Description(
            does="Makes a FROZEN account ACTIVE again.",
            use_when="the reason for the lock is gone.",
            not_when="held money is to be set free (a hold is released by its own saga or by time).",
            needs="a FROZEN account of the customer, why it may be used again, and an approver.",
            returns="the account's new state and the number of the lock that was lifted.",
        ),
        side_effect=SideEffect.REVERSIBLE,
        input=UnlockCustomerAccount,
        output=UnlockedCustomerAccount,
        reasons=(Reason.OBJECT_NOT_FOUND, Reason.NOT_OWNER, Reason.WRONG_STATE),
        resources=(
            ResourceUse(
                argument="account_id",
                kind="account",
                access=Access.LOCK,
                states=frozenset({"FROZEN"}),
                state_after="ACTIVE",
                lock=LockMode.EXCLUSIVE,
            ),
        ),
        compensates_by="Locks the account again under its old lock, unless it was locked again before.",
        preconditions=("The account is FROZEN and belongs to the principal.",),
        postconditions=("The account is ACTIVE; balance and holds are unchanged.",),
        duty=Duty.ONE,
        examples=(
            Example(
                utterance="I found my card again, unlock the account.",
                arguments={"account_id": "A00000017", "reason_code": "FRAUD_RULED_OUT"},
            ),
            Example(
                utterance="The review of A00000023 is over, it may be used again.",
                arguments={"account_id": "A00000023", "reason_code": "REVIEW_COMPLETED"},
            ),
        ),
        owner=OWNER,
    ),
    execute=unlock,
    compensate=relock,
)

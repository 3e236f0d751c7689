"""Holds: money set aside on an account. Opened by `freeze_account_funds`, released by its compensation or by time."""

from typing import Final, LiteralString

from pydantic import Field

from activities.database import Transaction
from activities.packs.ledger.fields import (
    HOLD_TTL_SECONDS_DEFAULT,
    OWNER,
    SENSITIVE,
    AmountCents,
    BalanceCents,
    Currency,
    CurrencyCode,
    CustomerAccountId,
    HoldId,
    HoldReason,
    HoldTtlSeconds,
    Memo,
    Moment,
)
from activities.packs.ledger.refusals import (
    OPEN_TO_DEBITS,
    race,
    read_accounts,
    require_account,
    require_funds,
    require_limit,
)
from activities.tool import Compensated, StepContext, Tool
from contracts.base import Contract
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.tool import Access, AmountUse, Description, Example, ObjectMade, ResourceUse, SideEffect, ToolContract

HOLD_RESOURCE: Final[LiteralString] = """
select h.hold_id as object_id, h.tenant, a.principal, h.currency, null::bigint as limit_cents,
    case when h.state <> 'OPEN' then h.state when h.expires_at <= now() then 'EXPIRED'
        when h.payee is not null then 'RESERVED' else 'OPEN' end as state,
    case when h.state = 'OPEN' and h.expires_at > now() and h.payee is null then h.amount_cents else 0 end
        as available_cents
from ledger.holds h join ledger.accounts a using (account_id)
where h.hold_id = any(%s)
"""
"""A hold that is overdue is EXPIRED by the database's clock, whether or not the sweep has come by.

One with a payee is RESERVED for the step that confirms it.
"""

_FREEZE: Final[LiteralString] = """
with account as (
    update ledger.accounts set held_cents = held_cents + %(amount_cents)s::bigint
    where account_id = %(account_id)s and tenant = %(tenant)s and principal = %(principal)s
      and state = 'ACTIVE' and currency = %(currency)s
      and balance_cents - held_cents >= %(amount_cents)s::bigint
      and (limit_cents is null or limit_cents >= %(amount_cents)s::bigint)
    returning balance_cents - held_cents as available_cents
), hold as (
    insert into ledger.holds (tenant, account_id, amount_cents, currency, reason_code, memo, expires_at,
        transaction_id, step_key, intent_id)
    select %(tenant)s, %(account_id)s, %(amount_cents)s::bigint, %(currency)s, %(reason_code)s, %(memo)s,
        now() + make_interval(secs => %(hold_ttl_seconds)s::bigint),
        %(transaction_id)s::bigint, %(step_key)s, %(intent_id)s
    from account
    returning hold_id, expires_at
)
select hold.hold_id, hold.expires_at, account.available_cents from hold, account
"""

_RELEASE: Final[LiteralString] = """
with hold as (
    update ledger.holds
    set state = case when expires_at <= now() then 'EXPIRED' else 'RELEASED' end, closed_at = now()
    where hold_id = %(hold_id)s and tenant = %(tenant)s and state = 'OPEN'
    returning account_id, amount_cents, state
), account as (
    update ledger.accounts a set held_cents = a.held_cents - hold.amount_cents
    from hold where a.account_id = hold.account_id
    returning a.account_id
)
select hold.state from hold, account
"""

_READ_HOLD: Final[LiteralString] = """
select h.state, c.capture_id, c.amount_cents - c.refunded_cents as kept_cents
from ledger.holds h left join ledger.captures c using (hold_id)
where h.hold_id = %(hold_id)s and h.tenant = %(tenant)s
"""

_EXPIRE: Final[LiteralString] = """
with due as materialized (
    select h.hold_id from ledger.holds h join ledger.accounts a on a.account_id = h.account_id
    where h.closed_at is null and h.expires_at <= now()
    order by h.expires_at limit %(limit)s::bigint
    for no key update skip locked
), expired as (
    update ledger.holds h set state = 'EXPIRED', closed_at = now()
    from due where h.hold_id = due.hold_id
    returning h.account_id, h.amount_cents
), freed as (
    select account_id, sum(amount_cents)::bigint as amount_cents, count(*) as holds from expired group by account_id
), changed as (
    update ledger.accounts a set held_cents = a.held_cents - freed.amount_cents
    from freed where a.account_id = freed.account_id
    returning freed.holds
)
select coalesce(sum(holds), 0)::bigint as expired from changed
"""
"""Locks holds and accounts without waiting for any, so their order does not matter and nobody is held up."""


class FreezeAccountFunds(Contract):
    """Set an amount aside on a customer account."""

    account_id: CustomerAccountId
    amount_cents: AmountCents
    currency: CurrencyCode
    hold_ttl_seconds: HoldTtlSeconds = HOLD_TTL_SECONDS_DEFAULT
    reason_code: HoldReason = Field(description="Why the money is set aside.", examples=["PURCHASE"])
    memo: Memo | None = None


class FrozenAccountFunds(Contract):
    """The hold that was opened; `available_cents` is what the account has left besides all its holds."""

    hold_id: HoldId
    account_id: CustomerAccountId
    amount_cents: AmountCents
    currency: CurrencyCode
    expires_at: Moment
    available_cents: BalanceCents


async def freeze(transaction: Transaction, step: FreezeAccountFunds, context: StepContext) -> FrozenAccountFunds:
    """Open a hold and count it on the account, in one statement. Raises SagaError to refuse."""
    row = await transaction.one(
        _FREEZE,
        {
            "account_id": step.account_id,
            "amount_cents": step.amount_cents,
            "currency": step.currency.value,
            "hold_ttl_seconds": step.hold_ttl_seconds,
            "reason_code": step.reason_code.value,
            "memo": step.memo,
            "tenant": context.tenant,
            "principal": context.principal,
            "transaction_id": context.transaction_id,
            "step_key": context.step_key,
            "intent_id": context.intent_id,
        },
    )
    if row is None:
        accounts = await read_accounts(transaction, step.account_id)
        account = require_account(
            accounts, step.account_id, context, states=OPEN_TO_DEBITS, currency=step.currency, owned=True
        )
        require_limit(account, step.amount_cents)
        require_funds(account, step.amount_cents, context)
        raise race(step.account_id)
    return FrozenAccountFunds(
        hold_id=row["hold_id"],
        account_id=step.account_id,
        amount_cents=step.amount_cents,
        currency=step.currency,
        expires_at=row["expires_at"],
        available_cents=row["available_cents"],
    )


async def release(
    transaction: Transaction, _: FreezeAccountFunds, output: FrozenAccountFunds | None, context: StepContext
) -> Compensated:
    """Free what the hold set aside; a hold that is no longer open has nothing to free, which is a success.

    An overdue hold becomes EXPIRED instead of RELEASED: the same money is free. Money that another step took
    through this hold and kept is reported as residue: it is not this compensation's to fetch back.
    """
    if output is None:  # a database tool's outcome is always known
        raise SagaError(Reason.OUTCOME_UNKNOWN, "The hold's id is not known; look the step up first.")
    return await release_hold(transaction, output.hold_id, output.currency, context)


async def release_hold(transaction: Transaction, hold_id: str, currency: Currency, context: StepContext) -> Compensated:
    """Do `release` for whatever opened the hold."""
    params = {"hold_id": hold_id, "tenant": context.tenant}
    if await transaction.one(_RELEASE, params):
        return Compensated()
    hold = await transaction.one(_READ_HOLD, params)
    if hold is None:
        raise SagaError(
            Reason.OBJECT_NOT_FOUND,
            f"There is no hold {hold_id}; the ledger was changed by hand.",
            details={"hold_id": hold_id},
        )
    if hold["kept_cents"]:
        return Compensated(
            residue=f"hold {hold_id} was captured: {hold['kept_cents']} cents {currency} "
            f"stay debited by capture {hold['capture_id']}"
        )
    return Compensated()


async def expire_holds(transaction: Transaction, limit: int) -> int:
    """Mark at most `limit` overdue open holds EXPIRED, oldest first, and free their amounts; return how many.

    Skips holds and accounts that another transaction is working on: they are for the next time.
    """
    row = await transaction.one(_EXPIRE, {"limit": limit})
    return int(row["expired"]) if row else 0


FREEZE_ACCOUNT_FUNDS: Final = Tool(
    contract=ToolContract(
        name="freeze_account_funds",
        title="Freeze account funds",
        description=Description(
            does="Sets an amount aside on a customer account, so that nothing else can spend it.",
            use_when="money is to be taken soon and must still be there then.",
            not_when="the whole account is to be blocked (lock_customer_account).",
            needs="an ACTIVE account of the customer with enough available money, the amount and why.",
            returns="the hold_id that debit_frozen_funds takes, and when the hold expires by itself.",
        ),
        side_effect=SideEffect.REVERSIBLE,
        input=FreezeAccountFunds,
        output=FrozenAccountFunds,
        reasons=(
            Reason.OBJECT_NOT_FOUND,
            Reason.NOT_OWNER,
            Reason.WRONG_STATE,
            Reason.CURRENCY_MISMATCH,
            Reason.LIMIT_EXCEEDED,
            Reason.FUNDS_INSUFFICIENT,
        ),
        resources=(
            ResourceUse(argument="account_id", kind="account", access=Access.HOLD, states=frozenset({"ACTIVE"})),
        ),
        makes=(ObjectMade(output="hold_id", kind="hold", state="OPEN", amount="amount_cents"),),
        amount=AmountUse(argument="amount_cents", currency="currency", taken_from="account_id"),
        compensates_by="Releases the hold; one that is captured, released or expired has nothing left to release.",
        preconditions=(
            "The account is ACTIVE, in the given currency, and belongs to the principal.",
            "Its balance minus what is held is at least the amount, and the amount is within its limit.",
        ),
        postconditions=(
            "An OPEN hold of exactly the amount exists and the account's held amount is higher by it.",
            "The balance is unchanged and the account stays ACTIVE.",
        ),
        sensitive_fields=SENSITIVE,
        examples=(
            Example(
                utterance="Reserve 25 euros on my account for order 4711.",
                arguments={
                    "account_id": "A00000017",
                    "amount_cents": 2500,
                    "currency": "EUR",
                    "hold_ttl_seconds": 3600,
                    "reason_code": "PURCHASE",
                    "memo": "Order 4711",
                },
            ),
            Example(
                utterance="Block a 200 dollar deposit for the flat on A00000023.",
                arguments={
                    "account_id": "A00000023",
                    "amount_cents": 20000,
                    "currency": "USD",
                    "reason_code": "DEPOSIT",
                },
            ),
        ),
        owner=OWNER,
    ),
    execute=freeze,
    compensate=release,
)

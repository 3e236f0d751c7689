"""Booking: the statement parts that every movement shares, so that money is moved in one way only.

A tool's statement begins with `with source as materialized (...)`: at most one row with debit_account,
credit_account and amount_cents, its own object (hold, capture, movement) locked. `PARTIES` then locks the customers'
accounts in the order of their ids, so that crossing transfers wait for each other and never deadlock, and offers
both accounts as they are *after* the wait. The tool's `allowed` checks everything on them; `MOVEMENT` and `BALANCES`
write what is allowed, and nothing else: all or nothing, one statement.

System accounts are read and neither locked nor changed: they are not hot.
"""

from typing import Any, Final, LiteralString

from activities.packs.ledger.fields import BALANCE_CENTS_MAX, COMPENSATION_REASON, OperationType
from activities.tool import StepContext

PARTIES: Final[LiteralString] = """
, locked as materialized (
    select account_id, tenant, principal, state, currency, limit_cents, balance_cents,
        balance_cents - held_cents as available_cents
    from ledger.accounts
    where account_id in ((select debit_account from source), (select credit_account from source))
      and balance_cents is not null
    order by account_id
    for no key update
), party as materialized (
    select * from locked
    union all
    select account_id, tenant, principal, state, currency, limit_cents, null, null
    from ledger.accounts
    where account_id in ((select debit_account from source), (select credit_account from source))
      and balance_cents is null
)
"""

PAYER_AND_PAYEE: Final[LiteralString] = """
    from source
    join party payer on payer.account_id = source.debit_account
    join party payee on payee.account_id = source.credit_account
    where payer.tenant = %(tenant)s and payee.tenant = %(tenant)s
      and payer.currency = %(currency)s and payee.currency = %(currency)s
      and payer.state <> 'CLOSED' and payee.state <> 'CLOSED'
      and (payee.balance_cents is null or payee.balance_cents + source.amount_cents <= %(balance_cents_max)s::bigint)
"""
"""What holds for every movement; the tool adds its own conditions with `and`."""

PAYER_CAN_PAY: Final[LiteralString] = """
      and (payer.available_cents is null or payer.available_cents >= source.amount_cents)
"""

MOVEMENT: Final[LiteralString] = """
, movement as (
    insert into ledger.movements (tenant, debit_account, credit_account, amount_cents, currency, operation_type,
        reason_code, memo, transaction_id, step_key, intent_id, capture_id, reverses)
    select %(tenant)s, allowed.debit_account, allowed.credit_account, allowed.amount_cents, %(currency)s,
        %(operation_type)s, %(reason_code)s, %(memo)s, %(transaction_id)s::bigint, %(step_key)s, %(intent_id)s,
        allowed.capture_id, allowed.reverses
    from allowed
    on conflict (reverses) where reverses is not null do nothing
    returning movement_id, debit_account, credit_account, amount_cents
)
"""
"""Write the movement; a second reversal of one movement writes none."""

BALANCES: Final[LiteralString] = """
, changed as (
    update ledger.accounts a set balance_cents = a.balance_cents
        + case a.account_id when movement.credit_account then movement.amount_cents else -movement.amount_cents end
    from movement, locked where a.account_id = locked.account_id
)
"""
"""Change the balances of the customers among payer and payee, as the movement says."""


def booking_params(
    context: StepContext, operation_type: OperationType, *, currency: str, reason_code: str, memo: str | None
) -> dict[str, Any]:
    """Give the parameters that the parts above use; the engine's come from `context`, never from arguments."""
    return {
        "tenant": context.tenant,
        "principal": context.principal,
        "currency": currency,
        "operation_type": operation_type.value,
        "reason_code": reason_code,
        "memo": memo,
        "transaction_id": context.transaction_id,
        "step_key": context.step_key,
        "intent_id": context.intent_id,
        "balance_cents_max": BALANCE_CENTS_MAX,
    }


def compensation_params(context: StepContext, operation_type: OperationType, *, currency: str) -> dict[str, Any]:
    """Give the parameters of a compensation's movement."""
    return booking_params(context, operation_type, currency=currency, reason_code=COMPENSATION_REASON, memo=None)

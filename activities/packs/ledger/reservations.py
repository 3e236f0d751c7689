"""Reservations: a payment in two halves.

`reserve_customer_payment` holds the money for a payee; when every other step of its intent has landed, its
confirmation captures the hold for that payee. Cancelled or expired, the money is free again.
"""

from typing import Final, LiteralString

from pydantic import Field

from activities.database import Transaction
from activities.packs.ledger.captures import DebitFrozenFunds, capture
from activities.packs.ledger.fields import (
    HOLD_TTL_SECONDS_DEFAULT,
    OWNER,
    SENSITIVE,
    AmountCents,
    AnyAccountId,
    BalanceCents,
    CaptureId,
    CurrencyCode,
    CustomerAccountId,
    DebitReason,
    HoldTtlSeconds,
    Memo,
    Moment,
    MovementId,
    PaymentReason,
    ReservationId,
)
from activities.packs.ledger.holds import release_hold
from activities.packs.ledger.refusals import (
    OPEN_TO_CREDITS,
    OPEN_TO_DEBITS,
    contradiction,
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
from contracts.tool import (
    Access,
    AmountUse,
    Confirmation,
    Description,
    Example,
    ObjectMade,
    ResourceUse,
    SideEffect,
    ToolContract,
)

_RESERVE: Final[LiteralString] = """
with account as (
    update ledger.accounts payer set held_cents = payer.held_cents + %(amount_cents)s::bigint
    from ledger.accounts payee
    where payer.account_id = %(account_id)s and payer.tenant = %(tenant)s and payer.principal = %(principal)s
      and payer.state = 'ACTIVE' and payer.currency = %(currency)s
      and payer.balance_cents - payer.held_cents >= %(amount_cents)s::bigint
      and (payer.limit_cents is null or payer.limit_cents >= %(amount_cents)s::bigint)
      and payee.account_id = %(payee)s and payee.account_id <> payer.account_id
      and payee.tenant = %(tenant)s and payee.currency = %(currency)s and payee.state <> 'CLOSED'
    returning payer.balance_cents - payer.held_cents as available_cents
), hold as (
    insert into ledger.holds (tenant, account_id, payee, amount_cents, currency, reason_code, memo, expires_at,
        transaction_id, step_key, intent_id)
    select %(tenant)s, %(account_id)s, %(payee)s, %(amount_cents)s::bigint, %(currency)s, %(reason_code)s, %(memo)s,
        now() + make_interval(secs => %(ttl_seconds)s::bigint),
        %(transaction_id)s::bigint, %(step_key)s, %(intent_id)s
    from account
    returning hold_id, expires_at
)
select hold.hold_id, hold.expires_at, account.available_cents from hold, account
"""


class ReserveCustomerPayment(Contract):
    """Set an amount aside for a payee, who gets it once everything else of the intent is done."""

    account_id: CustomerAccountId
    payee_account_id: AnyAccountId
    amount_cents: AmountCents
    currency: CurrencyCode
    hold_ttl_seconds: HoldTtlSeconds = HOLD_TTL_SECONDS_DEFAULT
    reason_code: PaymentReason = Field(description="What is paid for.", examples=["BOOKING"])
    memo: Memo | None = None


class ReservedCustomerPayment(Contract):
    """The reservation; `available_cents` is what the account has left besides all its holds."""

    reservation_id: ReservationId
    account_id: CustomerAccountId
    payee_account_id: AnyAccountId
    amount_cents: AmountCents
    currency: CurrencyCode
    expires_at: Moment
    available_cents: BalanceCents


class ConfirmedCustomerPayment(Contract):
    """The payment; `available_cents` is what the account has left."""

    capture_id: CaptureId
    movement_id: MovementId
    reservation_id: ReservationId
    payee_account_id: AnyAccountId
    amount_cents: AmountCents
    currency: CurrencyCode
    available_cents: BalanceCents


async def reserve(
    transaction: Transaction, step: ReserveCustomerPayment, context: StepContext
) -> ReservedCustomerPayment:
    """Open a hold for the payee and count it on the account, in one statement. Raises SagaError to refuse."""
    row = await transaction.one(
        _RESERVE,
        {
            "account_id": step.account_id,
            "payee": step.payee_account_id,
            "amount_cents": step.amount_cents,
            "currency": step.currency.value,
            "ttl_seconds": step.hold_ttl_seconds,
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
        await _explain(transaction, step, context)
        raise race(step.account_id)
    return ReservedCustomerPayment(
        reservation_id=row["hold_id"],
        account_id=step.account_id,
        payee_account_id=step.payee_account_id,
        amount_cents=step.amount_cents,
        currency=step.currency,
        expires_at=row["expires_at"],
        available_cents=row["available_cents"],
    )


async def _explain(transaction: Transaction, step: ReserveCustomerPayment, context: StepContext) -> None:
    if step.account_id == step.payee_account_id:
        raise contradiction(
            "payee_account_id",
            f"Account {step.account_id} cannot pay itself; name the account that gets the money.",
            {"account_id": step.account_id, "payee_account_id": step.payee_account_id},
        )
    accounts = await read_accounts(transaction, step.account_id, step.payee_account_id)
    payer = require_account(
        accounts, step.account_id, context, states=OPEN_TO_DEBITS, currency=step.currency, owned=True
    )
    require_account(
        accounts, step.payee_account_id, context, states=OPEN_TO_CREDITS, currency=step.currency, owned=False
    )
    require_limit(payer, step.amount_cents)
    require_funds(payer, step.amount_cents, context)


async def confirm(
    transaction: Transaction, step: ReserveCustomerPayment, output: ReservedCustomerPayment, context: StepContext
) -> ConfirmedCustomerPayment:
    """Capture the whole hold for its payee. Raises SagaError(WRONG_STATE) once it has expired."""
    debit = DebitFrozenFunds(
        hold_id=output.reservation_id,
        amount_cents=output.amount_cents,
        currency=output.currency,
        credit_account_id=output.payee_account_id,
        reason_code=DebitReason(step.reason_code.value),
        memo=step.memo,
    )
    done = await capture(transaction, debit, context, reserved_for=output.payee_account_id)
    return ConfirmedCustomerPayment(
        capture_id=done.capture_id,
        movement_id=done.movement_id,
        reservation_id=output.reservation_id,
        payee_account_id=output.payee_account_id,
        amount_cents=output.amount_cents,
        currency=output.currency,
        available_cents=done.available_cents,
    )


async def cancel(
    transaction: Transaction, _: ReserveCustomerPayment, output: ReservedCustomerPayment | None, context: StepContext
) -> Compensated:
    """Free what was set aside; a reservation that has expired has nothing to free, which is a success."""
    if output is None:  # a database tool's outcome is always known
        raise SagaError(Reason.OUTCOME_UNKNOWN, "The reservation's id is not known; look the step up first.")
    return await release_hold(transaction, output.reservation_id, output.currency, context)


RESERVE_CUSTOMER_PAYMENT: Final = Tool(
    contract=ToolContract(
        name="reserve_customer_payment",
        title="Reserve customer payment",
        description=Description(
            does="Sets an amount aside for a payee, who is paid when every other step of the intent is done.",
            use_when="a payment belongs to an order that may still fail: both happen, or neither.",
            not_when="the payment stands for itself (transfer_customer_funds) or its amount is settled later "
            "(freeze_account_funds).",
            needs="an ACTIVE account of the customer with enough available money, the payee's account, and why.",
            returns="the reservation, and when it expires by itself.",
        ),
        side_effect=SideEffect.REVERSIBLE,
        input=ReserveCustomerPayment,
        output=ReservedCustomerPayment,
        reasons=(
            Reason.OBJECT_NOT_FOUND,
            Reason.NOT_OWNER,
            Reason.WRONG_STATE,
            Reason.CURRENCY_MISMATCH,
            Reason.LIMIT_EXCEEDED,
            Reason.FUNDS_INSUFFICIENT,
            Reason.ARGUMENTS_INVALID,
            Reason.WINDOW_CLOSED,
        ),
        resources=(
            ResourceUse(argument="account_id", kind="account", access=Access.HOLD, states=frozenset({"ACTIVE"})),
            ResourceUse(argument="payee_account_id", kind="account", access=Access.PAY_INTO, states=OPEN_TO_CREDITS),
        ),
        makes=(ObjectMade(output="reservation_id", kind="hold", state="RESERVED", amount="amount_cents"),),
        amount=AmountUse(argument="amount_cents", currency="currency", taken_from="account_id"),
        compensates_by="Releases what was set aside; a reservation that has expired has nothing left to release.",
        confirms=Confirmation(
            does="Takes the whole reserved amount and pays it to the payee.",
            output=ConfirmedCustomerPayment,
            expires_at="expires_at",
            lasts="hold_ttl_seconds",
        ),
        preconditions=(
            "The account is ACTIVE, in the given currency, and belongs to the principal.",
            "Its balance minus what is held is at least the amount, and the amount is within its limit.",
            "The payee's account is another account of the tenant, in the same currency and not CLOSED.",
            "The reservation lasts at least as long as the intent may take.",
        ),
        postconditions=(
            "A hold of exactly the amount exists that only the confirmation can capture.",
            "No balance has changed.",
        ),
        sensitive_fields=SENSITIVE,
        examples=(
            Example(
                utterance="Pay the hotel 120 euros, but only if the train is booked too.",
                arguments={
                    "account_id": "A00000017",
                    "payee_account_id": "S00000001",
                    "amount_cents": 12000,
                    "currency": "EUR",
                    "reason_code": "BOOKING",
                    "memo": "Lyon, two nights",
                },
            ),
            Example(
                utterance="Reserve 25 dollars for A00000023, for two days.",
                arguments={
                    "account_id": "A00000017",
                    "payee_account_id": "A00000023",
                    "amount_cents": 2500,
                    "currency": "USD",
                    "hold_ttl_seconds": 172800,
                    "reason_code": "PURCHASE",
                },
            ),
        ),
        owner=OWNER,
    ),
    execute=reserve,
    compensate=cancel,
    confirm=confirm,
)

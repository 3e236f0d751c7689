"""Refunds: captured money that is given back, by `refund_captured_debit` or by the compensation of a debit.

A capture is CAPTURED, partly given back REFUNDING, then REFUNDED.
"""

from typing import Final, LiteralString

from pydantic import Field

from activities.database import Row, Transaction
from activities.packs.ledger.booking import (
    BALANCES,
    MOVEMENT,
    PARTIES,
    PAYER_AND_PAYEE,
    PAYER_CAN_PAY,
    booking_params,
    compensation_params,
)
from activities.packs.ledger.fields import (
    OWNER,
    REFUND_WINDOW_DAYS,
    SENSITIVE,
    AmountCents,
    BalanceCents,
    CaptureId,
    CaptureState,
    Currency,
    CurrencyCode,
    CustomerAccountId,
    Memo,
    MovementId,
    OperationType,
    RefundReason,
)
from activities.packs.ledger.refusals import (
    OPEN_TO_CREDITS,
    race,
    read_accounts,
    require_currency,
    require_funds,
    require_object,
    require_room,
    require_state,
)
from activities.tool import Compensated, StepContext, Tool
from contracts.base import Contract
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.tool import Access, AmountUse, Description, Example, ResourceUse, SideEffect, ToolContract

CAPTURE_RESOURCE: Final[LiteralString] = """
select c.capture_id as object_id, c.tenant, coalesce(payee.principal, a.principal) as principal, c.state, c.currency,
    c.amount_cents - c.refunded_cents as available_cents, null::bigint as limit_cents,
    payee.principal is null as draws_on_tenant
from ledger.captures c
join ledger.accounts a on a.account_id = c.account_id
join ledger.accounts payee on payee.account_id = c.credit_account
where c.capture_id = any(%s)
"""
"""Who may ask to give a capture back: the customer who got the money; if a system account got it, the one who paid
it, and then it is the tenant's money that is given.
"""

_SOURCE: Final[LiteralString] = """
with source as materialized (
    select capture_id, credit_account as debit_account, account_id as credit_account, null::text as reverses,
        coalesce(%(amount_cents)s::bigint, amount_cents - refunded_cents) as amount_cents
    from ledger.captures
    where capture_id = %(capture_id)s and tenant = %(tenant)s and state <> 'REFUNDED'
      and currency = %(currency)s
"""

_ALLOWED: Final[LiteralString] = (
    """
    for no key update
)
"""
    + PARTIES
    + """
, allowed as materialized (
    select source.*
"""
    + PAYER_AND_PAYEE
    + PAYER_CAN_PAY
)

_GIVEN_BACK: Final[LiteralString] = (
    """
)
"""  # noqa: S608 - constants
    + MOVEMENT
    + BALANCES
    + """
, given_back as (
    update ledger.captures c set refunded_cents = c.refunded_cents + allowed.amount_cents
    from allowed where c.capture_id = allowed.capture_id
    returning c.state, c.amount_cents - c.refunded_cents as refundable_cents
)
select movement_id, credit_account as account_id, state, refundable_cents from movement, given_back
"""
)

_REFUND: Final[LiteralString] = (
    _SOURCE
    + """
      and amount_cents - refunded_cents >= %(amount_cents)s::bigint
      and captured_at > now() - make_interval(days => %(window_days)s::int)
"""
    + _ALLOWED
    + """
      and coalesce(payer.principal, payee.principal) = %(principal)s
"""
    + _GIVEN_BACK
)

_GIVE_BACK_REST: Final[LiteralString] = _SOURCE + _ALLOWED + _GIVEN_BACK

_READ_CAPTURE: Final[LiteralString] = """
select c.tenant, coalesce(payee.principal, a.principal) as principal, c.state, c.currency, c.captured_at,
    c.amount_cents - c.refunded_cents as refundable_cents, c.account_id, c.credit_account,
    c.captured_at > now() - make_interval(days => %(window_days)s::int) as in_window
from ledger.captures c
join ledger.accounts a on a.account_id = c.account_id
join ledger.accounts payee on payee.account_id = c.credit_account
where c.capture_id = %(capture_id)s
"""


class RefundCapturedDebit(Contract):
    """Give captured money back, all or a part."""

    capture_id: CaptureId
    amount_cents: AmountCents
    currency: CurrencyCode
    reason_code: RefundReason = Field(description="Why it is given back.", examples=["GOODS_RETURNED"])
    memo: Memo | None = None


class RefundedCapturedDebit(Contract):
    """The refund's movement; `refundable_cents` is what is left of the capture."""

    movement_id: MovementId
    capture_id: CaptureId
    account_id: CustomerAccountId
    amount_cents: AmountCents
    currency: CurrencyCode
    capture_state: CaptureState = Field(description="REFUNDED when nothing is left.", examples=["REFUNDING"])
    refundable_cents: BalanceCents


async def give_back_rest(
    transaction: Transaction, capture_id: str, currency: Currency, context: StepContext
) -> Compensated:
    """Refund captured minus already refunded, whatever the refund window; all of it or nothing.

    Raises SagaError: WRONG_STATE (an account was closed meanwhile), FUNDS_INSUFFICIENT (the customer who got the
    money spent it).
    """
    params = compensation_params(context, OperationType.REFUND, currency=currency.value)
    params |= {"capture_id": capture_id, "amount_cents": None}
    if await transaction.one(_GIVE_BACK_REST, params):
        return Compensated()
    capture = await _read_capture(transaction, capture_id)
    capture = require_object(capture, "capture", capture_id, context, owned=False)
    if capture["state"] == "REFUNDED":
        return Compensated()
    await _explain_parties(transaction, capture, capture["refundable_cents"], context)
    raise race(capture_id)


async def refund(transaction: Transaction, step: RefundCapturedDebit, context: StepContext) -> RefundedCapturedDebit:
    """Give a captured amount back, never more than is left of it, within the window. Raises SagaError to refuse."""
    params = booking_params(
        context,
        OperationType.REFUND,
        currency=step.currency.value,
        reason_code=step.reason_code.value,
        memo=step.memo,
    )
    params |= {
        "capture_id": step.capture_id,
        "amount_cents": step.amount_cents,
        "window_days": REFUND_WINDOW_DAYS,
    }
    row = await transaction.one(_REFUND, params)
    if row is None:
        await _explain_refund(transaction, step, context)
        raise race(step.capture_id)
    return RefundedCapturedDebit(
        movement_id=row["movement_id"],
        capture_id=step.capture_id,
        account_id=row["account_id"],
        amount_cents=step.amount_cents,
        currency=step.currency,
        capture_state=CaptureState(row["state"]),
        refundable_cents=row["refundable_cents"],
    )


async def _explain_refund(transaction: Transaction, step: RefundCapturedDebit, context: StepContext) -> None:
    row = await _read_capture(transaction, step.capture_id)
    capture = require_object(row, "capture", step.capture_id, context)
    require_state(capture, "capture", step.capture_id, {"CAPTURED", "REFUNDING"})
    require_currency(capture, "capture", step.capture_id, step.currency)
    if not capture["in_window"]:
        captured_at = capture["captured_at"].isoformat()
        raise SagaError(
            Reason.WINDOW_CLOSED,
            f"Capture {step.capture_id} is of {captured_at}; refunds are possible for {REFUND_WINDOW_DAYS} days.",
            details={
                "capture_id": step.capture_id,
                "captured_at": captured_at,
                "window_days": REFUND_WINDOW_DAYS,
            },
        )
    if capture["refundable_cents"] < step.amount_cents:
        raise SagaError(
            Reason.FUNDS_INSUFFICIENT,
            f"Of capture {step.capture_id} {capture['refundable_cents']} cents are left to refund, "
            f"{step.amount_cents} were asked for; lower the amount.",
            details={
                "capture_id": step.capture_id,
                "refundable_cents": capture["refundable_cents"],
                "amount_cents": step.amount_cents,
            },
        )
    await _explain_parties(transaction, capture, step.amount_cents, context)


async def _read_capture(transaction: Transaction, capture_id: str) -> Row | None:
    return await transaction.one(_READ_CAPTURE, {"capture_id": capture_id, "window_days": REFUND_WINDOW_DAYS})


async def _explain_parties(transaction: Transaction, capture: Row, amount_cents: int, context: StepContext) -> None:
    payer_id, payee_id = capture["credit_account"], capture["account_id"]
    accounts = await read_accounts(transaction, payer_id, payee_id)
    for account_id in (payee_id, payer_id):
        require_state(accounts[account_id], "account", account_id, OPEN_TO_CREDITS)
    require_funds(accounts[payer_id], amount_cents, context)
    require_room(accounts[payee_id], amount_cents)


REFUND_CAPTURED_DEBIT: Final = Tool(
    contract=ToolContract(
        name="refund_captured_debit",
        title="Refund a captured debit",
        description=Description(
            does="Gives captured money back to the customer account it was taken from, all of it or a part.",
            use_when="a debit of debit_frozen_funds was right and is given back for a reason that came later.",
            not_when="the movement was a mistake of another kind (reverse_ledger_movement), or money is still held.",
            needs="the capture, not yet fully refunded and at most 180 days old, the amount, and why.",
            returns="the refund's movement and what is left to refund; it cannot be undone.",
        ),
        side_effect=SideEffect.IRREVERSIBLE,
        input=RefundCapturedDebit,
        output=RefundedCapturedDebit,
        reasons=(
            Reason.OBJECT_NOT_FOUND,
            Reason.NOT_OWNER,
            Reason.WRONG_STATE,
            Reason.CURRENCY_MISMATCH,
            Reason.WINDOW_CLOSED,
            Reason.FUNDS_INSUFFICIENT,
            Reason.LIMIT_EXCEEDED,
        ),
        resources=(
            ResourceUse(
                argument="capture_id",
                kind="capture",
                access=Access.TAKE,
                states=frozenset({"CAPTURED", "REFUNDING"}),
            ),
        ),
        amount=AmountUse(argument="amount_cents", currency="currency", taken_from="capture_id"),
        preconditions=(
            "The capture is CAPTURED or REFUNDING, in the given currency, and at most 180 days old.",
            "At least the amount is left of it: captured minus already refunded.",
            "Neither account is CLOSED; a customer who got the money still has it and is the principal.",
        ),
        postconditions=(
            "The capture's refunded amount is higher by the amount: REFUNDING, or REFUNDED when nothing is left.",
            "One movement of the amount goes the opposite way.",
        ),
        sensitive_fields=SENSITIVE,
        examples=(
            Example(
                utterance="Give the customer 10 euros back, one of the goods came broken.",
                arguments={
                    "capture_id": "C0000000042",
                    "amount_cents": 1000,
                    "currency": "EUR",
                    "reason_code": "GOODS_RETURNED",
                    "memo": "Order 4711, item 2",
                },
            ),
            Example(
                utterance="We charged this twice, refund the second one: 25 euros.",
                arguments={
                    "capture_id": "C0000000043",
                    "amount_cents": 2500,
                    "currency": "EUR",
                    "reason_code": "DUPLICATE_CHARGE",
                },
            ),
        ),
        owner=OWNER,
    ),
    execute=refund,
)

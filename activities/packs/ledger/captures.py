"""Captures: held money that is taken. Opened by `debit_frozen_funds`; `refunds` gives it back."""

from typing import Final, LiteralString

from pydantic import Field

from activities.database import Transaction
from activities.packs.ledger.booking import MOVEMENT, PARTIES, PAYER_AND_PAYEE, booking_params
from activities.packs.ledger.fields import (
    OWNER,
    SENSITIVE,
    SYSTEM_PREFIX,
    AmountCents,
    AnyAccountId,
    BalanceCents,
    CaptureId,
    CurrencyCode,
    CustomerAccountId,
    DebitReason,
    HoldId,
    Memo,
    MovementId,
    OperationType,
)
from activities.packs.ledger.refunds import give_back_rest
from activities.packs.ledger.refusals import (
    OPEN_TO_CREDITS,
    contradiction,
    race,
    read_accounts,
    require_account,
    require_currency,
    require_object,
    require_room,
    require_state,
)
from activities.tool import Compensated, StepContext, Tool
from contracts.base import Contract
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.tool import Access, AmountUse, Description, Example, ObjectMade, ResourceUse, SideEffect, ToolContract

_DEBIT_INTO_SYSTEM: Final[LiteralString] = """
with resolved as (
    update ledger.holds h set state = 'CAPTURED', captured_cents = %(amount_cents)s::bigint, closed_at = now()
    from ledger.accounts payer, ledger.accounts payee
    where h.hold_id = %(hold_id)s and h.tenant = %(tenant)s and h.state = 'OPEN' and h.expires_at > now()
      and h.payee is not distinct from %(reserved_for)s::text
      and h.currency = %(currency)s and h.amount_cents >= %(amount_cents)s::bigint
      and payer.account_id = h.account_id and payer.principal = %(principal)s
      and payee.account_id = %(credit_account)s and payee.balance_cents is null
      and payee.tenant = %(tenant)s and payee.currency = %(currency)s and payee.state <> 'CLOSED'
    returning h.account_id as debit_account, h.amount_cents as held_cents
), changed as (
    update ledger.accounts a
    set balance_cents = a.balance_cents - %(amount_cents)s::bigint, held_cents = a.held_cents - resolved.held_cents
    from resolved where a.account_id = resolved.debit_account
    returning resolved.debit_account, a.balance_cents - a.held_cents as available_cents,
        resolved.held_cents - %(amount_cents)s::bigint as released_cents
), capture as (
    insert into ledger.captures (tenant, hold_id, account_id, credit_account, amount_cents, currency, transaction_id)
    select %(tenant)s, %(hold_id)s, debit_account, %(credit_account)s, %(amount_cents)s::bigint, %(currency)s,
        %(transaction_id)s::bigint
    from changed
    returning capture_id, account_id
), movement as (
    insert into ledger.movements (tenant, debit_account, credit_account, amount_cents, currency, operation_type,
        reason_code, memo, transaction_id, step_key, intent_id, capture_id)
    select %(tenant)s, account_id, %(credit_account)s, %(amount_cents)s::bigint, %(currency)s, %(operation_type)s,
        %(reason_code)s, %(memo)s, %(transaction_id)s::bigint, %(step_key)s, %(intent_id)s, capture_id
    from capture
    returning movement_id, capture_id
)
select * from changed, movement
"""
"""Most debits: one customer row is changed, so there is no order to keep, and half the time goes (measured).

The hold's own row lock carries it: while the hold is OPEN its account has the money held and cannot be closed.
"""

_DEBIT_INTO_CUSTOMER: Final[LiteralString] = (
    """
with source as materialized (
    select hold_id, account_id::text as debit_account, %(credit_account)s::text as credit_account,
        %(amount_cents)s::bigint as amount_cents, amount_cents as held_cents, expires_at
    from ledger.holds
    where hold_id = %(hold_id)s and tenant = %(tenant)s and state = 'OPEN' and currency = %(currency)s
      and payee is not distinct from %(reserved_for)s::text
      and amount_cents >= %(amount_cents)s::bigint and account_id <> %(credit_account)s::text
    for no key update
)
"""  # noqa: S608 - constants
    + PARTIES
    + """
, payable as materialized (
    select source.*
"""
    + PAYER_AND_PAYEE
    + """
      and payer.principal = %(principal)s and source.expires_at > now()
), capture as (
    insert into ledger.captures (tenant, hold_id, account_id, credit_account, amount_cents, currency, transaction_id)
    select %(tenant)s, hold_id, debit_account, credit_account, amount_cents, %(currency)s, %(transaction_id)s::bigint
    from payable
    returning capture_id
), allowed as materialized (
    select payable.*, capture.capture_id, null::text as reverses from payable, capture
)
"""
    + MOVEMENT
    + """
, resolved as (
    update ledger.holds h set state = 'CAPTURED', captured_cents = allowed.amount_cents, closed_at = now()
    from allowed where h.hold_id = allowed.hold_id
), changed as (
    update ledger.accounts a set
        balance_cents = a.balance_cents
            + case a.account_id when allowed.credit_account then allowed.amount_cents else -allowed.amount_cents end,
        held_cents = a.held_cents - case a.account_id when allowed.debit_account then allowed.held_cents else 0 end
    from allowed, locked where a.account_id = locked.account_id
    returning a.account_id, a.balance_cents - a.held_cents as available_cents
)
select allowed.capture_id, movement.movement_id, allowed.debit_account, changed.available_cents,
    allowed.held_cents - allowed.amount_cents as released_cents
from movement, allowed join changed on changed.account_id = allowed.debit_account
"""
)

_READ_HOLD: Final[LiteralString] = """
select h.tenant, a.principal, h.currency, h.amount_cents, h.account_id, h.expires_at,
    case when h.state <> 'OPEN' then h.state when h.expires_at <= now() then 'EXPIRED'
        when h.payee is distinct from %(reserved_for)s::text then 'RESERVED' else 'OPEN' end as state
from ledger.holds h join ledger.accounts a using (account_id)
where h.hold_id = %(hold_id)s
"""


class DebitFrozenFunds(Contract):
    """Take held money: all of the hold or a part, the rest is released."""

    hold_id: HoldId
    amount_cents: AmountCents
    currency: CurrencyCode
    credit_account_id: AnyAccountId
    reason_code: DebitReason = Field(description="Why the money is taken.", examples=["PURCHASE"])
    memo: Memo | None = None


class DebitedFrozenFunds(Contract):
    """The capture; `released_cents` of the hold went back, `available_cents` is what the account has left."""

    capture_id: CaptureId
    movement_id: MovementId
    hold_id: HoldId
    account_id: CustomerAccountId
    credit_account_id: AnyAccountId
    amount_cents: AmountCents
    currency: CurrencyCode
    released_cents: BalanceCents
    available_cents: BalanceCents


async def debit(transaction: Transaction, step: DebitFrozenFunds, context: StepContext) -> DebitedFrozenFunds:
    """Capture a hold into the credit account, in one statement. Raises SagaError to refuse."""
    return await capture(transaction, step, context, reserved_for=None)


async def capture(
    transaction: Transaction, step: DebitFrozenFunds, context: StepContext, *, reserved_for: str | None
) -> DebitedFrozenFunds:
    """Do `debit`; a hold that is `reserved_for` a payee is captured by whoever confirms it and by nobody else."""
    params = booking_params(
        context,
        OperationType.CAPTURE,
        currency=step.currency.value,
        reason_code=step.reason_code.value,
        memo=step.memo,
    )
    params |= {
        "hold_id": step.hold_id,
        "amount_cents": step.amount_cents,
        "credit_account": step.credit_account_id,
        "reserved_for": reserved_for,
    }
    into_system = step.credit_account_id.startswith(SYSTEM_PREFIX)
    row = await transaction.one(_DEBIT_INTO_SYSTEM if into_system else _DEBIT_INTO_CUSTOMER, params)
    if row is None:
        await _explain_debit(transaction, step, context, reserved_for)
        raise race(step.hold_id)
    return DebitedFrozenFunds(
        capture_id=row["capture_id"],
        movement_id=row["movement_id"],
        hold_id=step.hold_id,
        account_id=row["debit_account"],
        credit_account_id=step.credit_account_id,
        amount_cents=step.amount_cents,
        currency=step.currency,
        released_cents=row["released_cents"],
        available_cents=row["available_cents"],
    )


async def _explain_debit(
    transaction: Transaction, step: DebitFrozenFunds, context: StepContext, reserved_for: str | None
) -> None:
    row = await transaction.one(_READ_HOLD, {"hold_id": step.hold_id, "reserved_for": reserved_for})
    hold = require_object(row, "hold", step.hold_id, context)
    require_state(hold, "hold", step.hold_id, {"OPEN"}, expires_at=hold["expires_at"].isoformat())
    require_currency(hold, "hold", step.hold_id, step.currency)
    if hold["amount_cents"] < step.amount_cents:
        raise SagaError(
            Reason.FUNDS_INSUFFICIENT,
            f"Hold {step.hold_id} holds {hold['amount_cents']} cents, {step.amount_cents} were to be taken; "
            "lower the amount.",
            details={
                "hold_id": step.hold_id,
                "held_cents": hold["amount_cents"],
                "amount_cents": step.amount_cents,
            },
        )
    if hold["account_id"] == step.credit_account_id:
        raise contradiction(
            "credit_account_id",
            f"Hold {step.hold_id} is on account {step.credit_account_id} itself; name the account that gets the money.",
            {"hold_id": step.hold_id, "credit_account_id": step.credit_account_id},
        )
    accounts = await read_accounts(transaction, step.credit_account_id)
    payee = require_account(
        accounts, step.credit_account_id, context, states=OPEN_TO_CREDITS, currency=step.currency, owned=False
    )
    require_room(payee, step.amount_cents)


async def give_back(
    transaction: Transaction, step: DebitFrozenFunds, output: DebitedFrozenFunds | None, context: StepContext
) -> Compensated:
    """Refund what is left of the capture. Raises SagaError when it cannot be done whole."""
    if output is None:  # a database tool's outcome is always known
        raise SagaError(Reason.OUTCOME_UNKNOWN, "The capture's id is not known; look the step up first.")
    return await give_back_rest(transaction, output.capture_id, step.currency, context)


DEBIT_FROZEN_FUNDS: Final = Tool(
    contract=ToolContract(
        name="debit_frozen_funds",
        title="Debit frozen funds",
        description=Description(
            does="Takes held money from a customer account into a named account; what the hold has more is released.",
            use_when="a hold of freeze_account_funds is to become a payment.",
            not_when="there is no hold yet, or customers move money among themselves (transfer_customer_funds).",
            needs="an OPEN hold of the customer that covers the amount, the account that gets the money, and why.",
            returns="the capture_id that refund_captured_debit takes, the movement, and how much was released.",
        ),
        side_effect=SideEffect.REVERSIBLE,
        input=DebitFrozenFunds,
        output=DebitedFrozenFunds,
        reasons=(
            Reason.OBJECT_NOT_FOUND,
            Reason.NOT_OWNER,
            Reason.WRONG_STATE,
            Reason.CURRENCY_MISMATCH,
            Reason.FUNDS_INSUFFICIENT,
            Reason.ARGUMENTS_INVALID,
            Reason.LIMIT_EXCEEDED,
        ),
        resources=(
            ResourceUse(
                argument="hold_id",
                kind="hold",
                access=Access.TAKE,
                states=frozenset({"OPEN"}),
                state_after="CAPTURED",
            ),
            ResourceUse(argument="credit_account_id", kind="account", access=Access.PAY_INTO, states=OPEN_TO_CREDITS),
        ),
        makes=(ObjectMade(output="capture_id", kind="capture", state="CAPTURED", amount="amount_cents"),),
        amount=AmountUse(
            argument="amount_cents", currency="currency", taken_from="hold_id", paid_into="credit_account_id"
        ),
        compensates_by="Refunds what was captured minus what was refunded already, also after the refund window.",
        preconditions=(
            "The hold is OPEN, not expired, in the given currency, and covers the amount.",
            "The hold's account belongs to the principal and is not CLOSED.",
            "The credit account is another account of the tenant, in the same currency and not CLOSED.",
        ),
        postconditions=(
            "The hold is CAPTURED, its whole amount is no longer held, and one movement of the amount exists.",
            "The capture is CAPTURED with nothing refunded.",
        ),
        sensitive_fields=SENSITIVE,
        examples=(
            Example(
                utterance="Take the 25 euros that we reserved for order 4711 and pay the shop.",
                arguments={
                    "hold_id": "H0000000042",
                    "amount_cents": 2500,
                    "currency": "EUR",
                    "credit_account_id": "S00000001",
                    "reason_code": "PURCHASE",
                    "memo": "Order 4711",
                },
            ),
            Example(
                utterance="Keep 80 dollars of the deposit for the damage and give the rest back.",
                arguments={
                    "hold_id": "H0000000043",
                    "amount_cents": 8000,
                    "currency": "USD",
                    "credit_account_id": "S00000002",
                    "reason_code": "PENALTY",
                },
            ),
        ),
        owner=OWNER,
    ),
    execute=debit,
    compensate=give_back,
)

"""Reversals: the exact counter-movement of a movement, once. By tool, or as compensation of a credit or transfer."""

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
    SENSITIVE,
    AmountCents,
    AnyAccountId,
    Currency,
    CurrencyCode,
    Memo,
    MovementId,
    OperationType,
    ReversalReason,
)
from activities.packs.ledger.refusals import (
    OPEN_TO_CREDITS,
    OPEN_TO_DEBITS,
    contradiction,
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
from contracts.reasons import Reason
from contracts.tool import Access, AmountUse, Description, Example, ResourceUse, SideEffect, ToolContract

_STATED: Final[LiteralString] = """
select m.movement_id as object_id, m.tenant, payer.principal, m.currency, m.amount_cents as available_cents,
    case when m.operation_type not in ('CREDIT', 'TRANSFER') then 'FINAL'
        when exists (select from ledger.movements r where r.reverses = m.movement_id) then 'REVERSED'
        else 'POSTED' end as state,
    null::bigint as limit_cents"""
"""A movement belongs to whom its reversal takes from. FINAL: an opening, a reversal, a refund, a capture (that is
refunded instead, so that nothing is given back twice), or an adjustment (what two approvers decided, two correct).
"""

_MOVEMENTS: Final[LiteralString] = """
from ledger.movements m join ledger.accounts payer on payer.account_id = m.credit_account
"""

MOVEMENT_RESOURCE: Final[LiteralString] = _STATED + _MOVEMENTS + "where m.movement_id = any(%s)"

_READ: Final[LiteralString] = (
    _STATED
    + ", m.operation_type, m.debit_account, m.credit_account"
    + _MOVEMENTS
    + "where m.movement_id = %(movement_id)s"
)

_SOURCE: Final[LiteralString] = (
    """
with source as materialized (
    select credit_account as debit_account, debit_account as credit_account, amount_cents, movement_id as reverses,
        null::text as capture_id
    from ledger.movements m
    where movement_id = %(movement_id)s and tenant = %(tenant)s and currency = %(currency)s
      and operation_type in ('CREDIT', 'TRANSFER')
      and amount_cents = coalesce(%(amount_cents)s::bigint, amount_cents)
      and not exists (select from ledger.movements r where r.reverses = m.movement_id)
)
"""  # noqa: S608 - constants
    + PARTIES
    + """
, allowed as materialized (
    select source.*
"""
    + PAYER_AND_PAYEE
    + PAYER_CAN_PAY
)

_REVERSED: Final[LiteralString] = (
    """
)
"""
    + MOVEMENT
    + BALANCES
    + """
select movement_id, debit_account, credit_account from movement
"""
)

_REVERSE: Final[LiteralString] = (
    _SOURCE
    + """
      and payer.state = 'ACTIVE' and payer.principal = %(principal)s
"""
    + _REVERSED
)

_TAKE_BACK: Final[LiteralString] = _SOURCE + _REVERSED


class ReverseLedgerMovement(Contract):
    """Book the exact opposite of a movement that should never have been; amount and currency must be its own."""

    movement_id: MovementId
    amount_cents: AmountCents
    currency: CurrencyCode
    reason_code: ReversalReason = Field(description="What was wrong with it.", examples=["WRONG_ACCOUNT"])
    memo: Memo | None = None


class ReversedLedgerMovement(Contract):
    """The reversing movement; it cannot itself be reversed."""

    movement_id: MovementId
    reversed_movement_id: MovementId
    debit_account_id: AnyAccountId
    credit_account_id: AnyAccountId
    amount_cents: AmountCents
    currency: CurrencyCode


async def reverse(
    transaction: Transaction, step: ReverseLedgerMovement, context: StepContext
) -> ReversedLedgerMovement:
    """Reverse a movement once, whole. Raises SagaError to refuse."""
    params = booking_params(
        context,
        OperationType.REVERSAL,
        currency=step.currency.value,
        reason_code=step.reason_code.value,
        memo=step.memo,
    )
    params |= {"movement_id": step.movement_id, "amount_cents": step.amount_cents}
    row = await transaction.one(_REVERSE, params)
    if row is None:
        await _explain(transaction, step, context)
        raise race(step.movement_id)
    return ReversedLedgerMovement(
        movement_id=row["movement_id"],
        reversed_movement_id=step.movement_id,
        debit_account_id=row["debit_account"],
        credit_account_id=row["credit_account"],
        amount_cents=step.amount_cents,
        currency=step.currency,
    )


async def _explain(transaction: Transaction, step: ReverseLedgerMovement, context: StepContext) -> None:
    row = await transaction.one(_READ, {"movement_id": step.movement_id})
    movement = require_object(row, "movement", step.movement_id, context, tenant_may=True)
    require_state(movement, "movement", step.movement_id, {"POSTED"}, operation_type=movement["operation_type"])
    require_currency(movement, "movement", step.movement_id, step.currency)
    if movement["available_cents"] != step.amount_cents:
        raise contradiction(
            "amount_cents",
            f"Movement {step.movement_id} is of {movement['available_cents']} cents, not {step.amount_cents}; "
            "a reversal is of exactly the movement's amount.",
            {"movement_id": step.movement_id, "movement_cents": str(movement["available_cents"])},
        )
    accounts = await _accounts_that_move(transaction, movement)
    require_state(accounts[0], "account", movement["credit_account"], OPEN_TO_DEBITS)
    require_funds(accounts[0], step.amount_cents, context)


async def take_back(
    transaction: Transaction, movement_id: str, currency: Currency, context: StepContext
) -> Compensated:
    """Reverse a movement whole, also out of a FROZEN account; one that was reversed before needs nothing more.

    Raises SagaError: WRONG_STATE (an account was closed meanwhile), FUNDS_INSUFFICIENT (the money is spent).
    """
    params = compensation_params(context, OperationType.REVERSAL, currency=currency.value)
    params |= {"movement_id": movement_id, "amount_cents": None}
    if await transaction.one(_TAKE_BACK, params):
        return Compensated()
    row = await transaction.one(_READ, {"movement_id": movement_id})
    movement = require_object(row, "movement", movement_id, context, owned=False)
    if movement["state"] == "REVERSED":
        return Compensated()
    payer, _ = await _accounts_that_move(transaction, movement)
    require_funds(payer, movement["available_cents"], context)
    raise race(movement_id)


async def _accounts_that_move(transaction: Transaction, movement: Row) -> tuple[Row, Row]:
    """Read who pays and who gets the reversal. Raises SagaError when it could not be booked for any principal."""
    payer_id, payee_id = movement["credit_account"], movement["debit_account"]
    accounts = await read_accounts(transaction, payer_id, payee_id)
    for account_id in (payer_id, payee_id):
        require_state(accounts[account_id], "account", account_id, OPEN_TO_CREDITS)
    require_room(accounts[payee_id], movement["available_cents"])
    return accounts[payer_id], accounts[payee_id]


REVERSE_LEDGER_MOVEMENT: Final = Tool(
    contract=ToolContract(
        name="reverse_ledger_movement",
        title="Reverse a ledger movement",
        description=Description(
            does="Books the exact opposite of a credit or transfer, once and whole.",
            use_when="a movement should never have been: wrong account, wrong amount, made twice.",
            not_when="captured money is given back (refund_captured_debit), or an adjustment or only a part is wrong.",
            needs="the movement with its exact amount, the money still there, and what was wrong.",
            returns="the reversing movement; it cannot be undone.",
        ),
        side_effect=SideEffect.IRREVERSIBLE,
        input=ReverseLedgerMovement,
        output=ReversedLedgerMovement,
        reasons=(
            Reason.OBJECT_NOT_FOUND,
            Reason.NOT_OWNER,
            Reason.WRONG_STATE,
            Reason.CURRENCY_MISMATCH,
            Reason.ARGUMENTS_INVALID,
            Reason.FUNDS_INSUFFICIENT,
            Reason.LIMIT_EXCEEDED,
        ),
        resources=(
            ResourceUse(
                argument="movement_id",
                kind="movement",
                access=Access.TAKE,
                states=frozenset({"POSTED"}),
                state_after="REVERSED",
            ),
        ),
        amount=AmountUse(argument="amount_cents", currency="currency", exactly_of="movement_id"),
        preconditions=(
            "The movement is a credit or transfer, of exactly this amount, and not reversed.",
            "The account that got the money is ACTIVE, belongs to the principal, and has it still.",
        ),
        postconditions=("One movement of the same amount in the opposite direction exists and names the first.",),
        sensitive_fields=SENSITIVE,
        examples=(
            Example(
                utterance="That 15 euro credit went to the wrong account, take it back.",
                arguments={
                    "movement_id": "M0000000042",
                    "amount_cents": 1500,
                    "currency": "EUR",
                    "reason_code": "WRONG_ACCOUNT",
                },
            ),
            Example(
                utterance="The transfer over 99 dollars was made twice, undo the second.",
                arguments={
                    "movement_id": "M0000000043",
                    "amount_cents": 9900,
                    "currency": "USD",
                    "reason_code": "DUPLICATE_MOVEMENT",
                    "memo": "Ticket 815",
                },
            ),
        ),
        owner=OWNER,
    ),
    execute=reverse,
)

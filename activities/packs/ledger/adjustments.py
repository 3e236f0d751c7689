"""Adjustments: a correction of a customer's balance against a system account; always by two approvers."""

from typing import Final, LiteralString

from pydantic import Field

from activities.database import Transaction
from activities.packs.ledger.booking import booking_params
from activities.packs.ledger.fields import (
    OWNER,
    SENSITIVE,
    AdjustmentReason,
    AmountCents,
    CurrencyCode,
    CustomerAccountId,
    Direction,
    Memo,
    MovementId,
    OperationType,
    SystemAccountId,
)
from activities.packs.ledger.movements import MOVE_BETWEEN, MOVED
from activities.packs.ledger.refusals import (
    OPEN_TO_CREDITS,
    OPEN_TO_DEBITS,
    race,
    read_accounts,
    require_account,
    require_funds,
    require_room,
)
from activities.tool import StepContext, Tool
from contracts.base import Contract
from contracts.reasons import Reason
from contracts.tool import Access, AmountUse, Description, Duty, Example, ResourceUse, SideEffect, ToolContract

_ADJUST: Final[LiteralString] = (
    MOVE_BETWEEN
    + """
      and coalesce(payer.principal, payee.principal) = %(principal)s
"""
    + MOVED
)


class AdjustAccountBalance(Contract):
    """Correct a balance; `direction` is seen from the customer."""

    account_id: CustomerAccountId
    direction: Direction = Field(
        description="CREDIT gives the customer the amount, DEBIT takes it.", examples=["CREDIT"]
    )
    system_account_id: SystemAccountId
    amount_cents: AmountCents
    currency: CurrencyCode
    reason_code: AdjustmentReason = Field(description="What is corrected.", examples=["MISPOSTING"])
    memo: Memo | None = None


class AdjustedAccountBalance(Contract):
    """The correction's movement."""

    movement_id: MovementId
    account_id: CustomerAccountId
    direction: Direction = Field(description="As asked.", examples=["CREDIT"])
    system_account_id: SystemAccountId
    amount_cents: AmountCents
    currency: CurrencyCode


async def adjust(transaction: Transaction, step: AdjustAccountBalance, context: StepContext) -> AdjustedAccountBalance:
    """Move the amount between customer and system account. Raises SagaError to refuse."""
    pays = step.direction is Direction.DEBIT
    params = booking_params(
        context,
        OperationType.ADJUSTMENT,
        currency=step.currency.value,
        reason_code=step.reason_code.value,
        memo=step.memo,
    )
    params |= {
        "debit_account": step.account_id if pays else step.system_account_id,
        "credit_account": step.system_account_id if pays else step.account_id,
        "amount_cents": step.amount_cents,
    }
    row = await transaction.one(_ADJUST, params)
    if row is None:
        accounts = await read_accounts(transaction, step.account_id, step.system_account_id)
        customer, _ = (
            require_account(
                accounts,
                account_id,
                context,
                states=OPEN_TO_DEBITS if debited else OPEN_TO_CREDITS,
                currency=step.currency,
                owned=True,
            )
            for account_id, debited in ((step.account_id, pays), (step.system_account_id, not pays))
        )
        if pays:
            require_funds(customer, step.amount_cents, context)
        else:
            require_room(customer, step.amount_cents)
        raise race(step.account_id)
    return AdjustedAccountBalance(
        movement_id=row["movement_id"],
        account_id=step.account_id,
        direction=step.direction,
        system_account_id=step.system_account_id,
        amount_cents=step.amount_cents,
        currency=step.currency,
    )


ADJUST_ACCOUNT_BALANCE: Final = Tool(
    contract=ToolContract(
        name="adjust_account_balance",
        title="Adjust an account's balance",
        description=Description(
            does="Corrects a customer's balance by an amount, against a system account.",
            use_when="the books are wrong and no movement, refund or reversal describes what has to be put right.",
            not_when="one movement was wrong (reverse_ledger_movement) or money is given (credit_customer_account).",
            needs="the account, the system account, direction, amount, what is corrected, and two approvers.",
            returns="the movement; it cannot be undone by compensation.",
        ),
        side_effect=SideEffect.IRREVERSIBLE,
        input=AdjustAccountBalance,
        output=AdjustedAccountBalance,
        reasons=(
            Reason.OBJECT_NOT_FOUND,
            Reason.NOT_OWNER,
            Reason.WRONG_STATE,
            Reason.CURRENCY_MISMATCH,
            Reason.FUNDS_INSUFFICIENT,
            Reason.LIMIT_EXCEEDED,
        ),
        resources=(
            ResourceUse(argument="account_id", kind="account", access=Access.TAKE, states=OPEN_TO_CREDITS),
            ResourceUse(argument="system_account_id", kind="account", access=Access.TAKE, states=OPEN_TO_CREDITS),
        ),
        amount=AmountUse(argument="amount_cents", currency="currency"),
        preconditions=(
            "The account belongs to the principal; whichever account pays is ACTIVE, the other not CLOSED.",
            "A customer who pays has the amount available; both accounts are in the given currency.",
        ),
        postconditions=("The customer's balance differs by the amount in the given direction, by one movement.",),
        duty=Duty.TWO,
        sensitive_fields=SENSITIVE,
        examples=(
            Example(
                utterance="Correct A00000017 by 1 cent, the interest was rounded wrongly.",
                arguments={
                    "account_id": "A00000017",
                    "direction": "CREDIT",
                    "system_account_id": "S00000003",
                    "amount_cents": 1,
                    "currency": "EUR",
                    "reason_code": "ROUNDING",
                },
            ),
            Example(
                utterance="Take the 12 dollars that were booked to A00000023 by mistake in last night's import.",
                arguments={
                    "account_id": "A00000023",
                    "direction": "DEBIT",
                    "system_account_id": "S00000003",
                    "amount_cents": 1200,
                    "currency": "USD",
                    "reason_code": "MISPOSTING",
                    "memo": "Import of 3 May",
                },
            ),
        ),
        owner=OWNER,
    ),
    execute=adjust,
)

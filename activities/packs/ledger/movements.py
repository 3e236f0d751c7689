"""Movements between accounts that need no hold: a credit out of a system account, a transfer among customers."""

from typing import Final, LiteralString, Self

from pydantic import Field, model_validator

from activities.database import Transaction
from activities.packs.ledger.booking import (
    BALANCES,
    MOVEMENT,
    PARTIES,
    PAYER_AND_PAYEE,
    PAYER_CAN_PAY,
    booking_params,
)
from activities.packs.ledger.fields import (
    OWNER,
    SENSITIVE,
    AmountCents,
    CreditReason,
    CurrencyCode,
    CustomerAccountId,
    Memo,
    MovementId,
    OperationType,
    SystemAccountId,
    TransferReason,
)
from activities.packs.ledger.refusals import (
    OPEN_TO_CREDITS,
    OPEN_TO_DEBITS,
    race,
    read_accounts,
    require_account,
    require_funds,
    require_limit,
    require_room,
)
from activities.packs.ledger.reversals import take_back
from activities.tool import Compensated, StepContext, Tool
from contracts.base import Contract
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.tool import Access, AmountUse, Description, Example, ObjectMade, ResourceUse, SideEffect, ToolContract

MOVE_BETWEEN: Final[LiteralString] = (
    """
with source as materialized (
    select %(debit_account)s::text as debit_account, %(credit_account)s::text as credit_account,
        %(amount_cents)s::bigint as amount_cents, null::text as capture_id, null::text as reverses
)
"""
    + PARTIES
    + """
, allowed as materialized (
    select source.*
"""
    + PAYER_AND_PAYEE
    + """
      and payer.state = 'ACTIVE'
"""
    + PAYER_CAN_PAY
)
"""Move between two named accounts; the tool ends it with whose they must be, and `MOVED`."""

MOVED: Final[LiteralString] = (
    """
)
"""
    + MOVEMENT
    + BALANCES
    + """
select movement_id from movement
"""
)

_CREDIT: Final[LiteralString] = (
    MOVE_BETWEEN
    + """
      and payer.principal is null and payee.principal is not null
"""
    + MOVED
)

_TRANSFER: Final[LiteralString] = (
    MOVE_BETWEEN
    + """
      and payer.principal = %(principal)s and payee.principal is not null
      and (payer.limit_cents is null or payer.limit_cents >= source.amount_cents)
"""
    + MOVED
)


class CreditCustomerAccount(Contract):
    """Pay a customer out of a system account."""

    account_id: CustomerAccountId
    funding_account_id: SystemAccountId
    amount_cents: AmountCents
    currency: CurrencyCode
    reason_code: CreditReason = Field(description="Why the customer gets it.", examples=["GOODWILL"])
    memo: Memo | None = None


class CreditedCustomerAccount(Contract):
    """The credit's movement."""

    movement_id: MovementId
    account_id: CustomerAccountId
    funding_account_id: SystemAccountId
    amount_cents: AmountCents
    currency: CurrencyCode


class TransferCustomerFunds(Contract):
    """Move money from a customer's account to another customer account."""

    from_account_id: CustomerAccountId
    to_account_id: CustomerAccountId
    amount_cents: AmountCents
    currency: CurrencyCode
    reason_code: TransferReason = Field(description="Why it is transferred.", examples=["PAYMENT"])
    memo: Memo | None = None

    @model_validator(mode="after")
    def _two_accounts(self) -> Self:
        if self.from_account_id == self.to_account_id:
            raise ValueError("from_account_id and to_account_id must be two different accounts.")
        return self


class TransferredCustomerFunds(Contract):
    """The transfer's movement."""

    movement_id: MovementId
    from_account_id: CustomerAccountId
    to_account_id: CustomerAccountId
    amount_cents: AmountCents
    currency: CurrencyCode


async def credit(
    transaction: Transaction, step: CreditCustomerAccount, context: StepContext
) -> CreditedCustomerAccount:
    """Move money from a system account to a customer's. Raises SagaError to refuse."""
    params = booking_params(
        context,
        OperationType.CREDIT,
        currency=step.currency.value,
        reason_code=step.reason_code.value,
        memo=step.memo,
    )
    params |= {
        "debit_account": step.funding_account_id,
        "credit_account": step.account_id,
        "amount_cents": step.amount_cents,
    }
    row = await transaction.one(_CREDIT, params)
    if row is None:
        accounts = await read_accounts(transaction, step.funding_account_id, step.account_id)
        payee = require_account(
            accounts, step.account_id, context, states=OPEN_TO_CREDITS, currency=step.currency, owned=False
        )
        require_account(
            accounts, step.funding_account_id, context, states=OPEN_TO_DEBITS, currency=step.currency, owned=True
        )
        require_room(payee, step.amount_cents)
        raise race(step.account_id)
    return CreditedCustomerAccount(
        movement_id=row["movement_id"],
        account_id=step.account_id,
        funding_account_id=step.funding_account_id,
        amount_cents=step.amount_cents,
        currency=step.currency,
    )


async def take_credit_back(
    transaction: Transaction,
    step: CreditCustomerAccount,
    output: CreditedCustomerAccount | None,
    context: StepContext,
) -> Compensated:
    """Reverse the credit. Raises SagaError when the money is spent or an account was closed meanwhile."""
    if output is None:  # a database tool's outcome is always known
        raise SagaError(Reason.OUTCOME_UNKNOWN, "The movement's id is not known; look the step up first.")
    return await take_back(transaction, output.movement_id, step.currency, context)


async def transfer(
    transaction: Transaction, step: TransferCustomerFunds, context: StepContext
) -> TransferredCustomerFunds:
    """Move money between customers' accounts, locked in the order of their ids. Raises SagaError to refuse."""
    params = booking_params(
        context,
        OperationType.TRANSFER,
        currency=step.currency.value,
        reason_code=step.reason_code.value,
        memo=step.memo,
    )
    params |= {
        "debit_account": step.from_account_id,
        "credit_account": step.to_account_id,
        "amount_cents": step.amount_cents,
    }
    row = await transaction.one(_TRANSFER, params)
    if row is None:
        accounts = await read_accounts(transaction, step.from_account_id, step.to_account_id)
        payer = require_account(
            accounts, step.from_account_id, context, states=OPEN_TO_DEBITS, currency=step.currency, owned=True
        )
        payee = require_account(
            accounts, step.to_account_id, context, states=OPEN_TO_CREDITS, currency=step.currency, owned=False
        )
        require_limit(payer, step.amount_cents)
        require_funds(payer, step.amount_cents, context)
        require_room(payee, step.amount_cents)
        raise race(step.from_account_id)
    return TransferredCustomerFunds(
        movement_id=row["movement_id"],
        from_account_id=step.from_account_id,
        to_account_id=step.to_account_id,
        amount_cents=step.amount_cents,
        currency=step.currency,
    )


async def take_transfer_back(
    transaction: Transaction,
    step: TransferCustomerFunds,
    output: TransferredCustomerFunds | None,
    context: StepContext,
) -> Compensated:
    """Reverse the transfer. Raises SagaError when the money is spent or an account was closed meanwhile."""
    if output is None:  # a database tool's outcome is always known
        raise SagaError(Reason.OUTCOME_UNKNOWN, "The movement's id is not known; look the step up first.")
    return await take_back(transaction, output.movement_id, step.currency, context)


CREDIT_CUSTOMER_ACCOUNT: Final = Tool(
    contract=ToolContract(
        name="credit_customer_account",
        title="Credit a customer account",
        description=Description(
            does="Pays a customer account out of a system account of the tenant.",
            use_when="the customer gets money from us: goodwill, cashback, interest, a top-up that arrived.",
            not_when="captured money is given back (refund_captured_debit), a customer pays (transfer_customer_funds).",
            needs="the account, the system account that funds it, the amount, and why.",
            returns="the movement, which reverse_ledger_movement takes if it was a mistake.",
        ),
        side_effect=SideEffect.REVERSIBLE,
        input=CreditCustomerAccount,
        output=CreditedCustomerAccount,
        reasons=(
            Reason.OBJECT_NOT_FOUND,
            Reason.NOT_OWNER,
            Reason.WRONG_STATE,
            Reason.CURRENCY_MISMATCH,
            Reason.LIMIT_EXCEEDED,
        ),
        resources=(
            ResourceUse(argument="account_id", kind="account", access=Access.PAY_INTO, states=OPEN_TO_CREDITS),
            ResourceUse(argument="funding_account_id", kind="account", access=Access.TAKE, states=OPEN_TO_DEBITS),
        ),
        makes=(ObjectMade(output="movement_id", kind="movement", state="POSTED", amount="amount_cents"),),
        amount=AmountUse(
            argument="amount_cents", currency="currency", taken_from="funding_account_id", paid_into="account_id"
        ),
        compensates_by="Reverses the movement, if the customer still has the money; else an operator decides.",
        preconditions=(
            "The customer account is not CLOSED, the funding account is ACTIVE and of the same tenant.",
            "Both are in the given currency.",
        ),
        postconditions=("The customer's balance is higher by the amount, by one movement out of the funding account.",),
        sensitive_fields=SENSITIVE,
        examples=(
            Example(
                utterance="Give the customer 15 euros as an apology for the delay.",
                arguments={
                    "account_id": "A00000017",
                    "funding_account_id": "S00000001",
                    "amount_cents": 1500,
                    "currency": "EUR",
                    "reason_code": "GOODWILL",
                    "memo": "Sorry for the delay",
                },
            ),
            Example(
                utterance="Book the 3 dollars cashback for A00000023.",
                arguments={
                    "account_id": "A00000023",
                    "funding_account_id": "S00000002",
                    "amount_cents": 300,
                    "currency": "USD",
                    "reason_code": "CASHBACK",
                },
            ),
        ),
        owner=OWNER,
    ),
    execute=credit,
    compensate=take_credit_back,
)

TRANSFER_CUSTOMER_FUNDS: Final = Tool(
    contract=ToolContract(
        name="transfer_customer_funds",
        title="Transfer customer funds",
        description=Description(
            does="Moves money from an account of the customer to another customer account, at once.",
            use_when="a customer pays a customer, or moves money between own accounts.",
            not_when="a shop or fee is paid (freeze_account_funds, then debit_frozen_funds).",
            needs="an ACTIVE account with enough available money, the receiving account, the amount, and why.",
            returns="the movement, which reverse_ledger_movement takes if it was a mistake.",
        ),
        side_effect=SideEffect.REVERSIBLE,
        input=TransferCustomerFunds,
        output=TransferredCustomerFunds,
        reasons=(
            Reason.OBJECT_NOT_FOUND,
            Reason.NOT_OWNER,
            Reason.WRONG_STATE,
            Reason.CURRENCY_MISMATCH,
            Reason.LIMIT_EXCEEDED,
            Reason.FUNDS_INSUFFICIENT,
        ),
        resources=(
            ResourceUse(argument="from_account_id", kind="account", access=Access.TAKE, states=OPEN_TO_DEBITS),
            ResourceUse(argument="to_account_id", kind="account", access=Access.PAY_INTO, states=OPEN_TO_CREDITS),
        ),
        makes=(ObjectMade(output="movement_id", kind="movement", state="POSTED", amount="amount_cents"),),
        amount=AmountUse(
            argument="amount_cents", currency="currency", taken_from="from_account_id", paid_into="to_account_id"
        ),
        compensates_by="Reverses the movement, if the receiver still has the money; else an operator decides.",
        preconditions=(
            "The paying account is ACTIVE, the principal's, has the amount available and a limit that allows it.",
            "The receiving account is another customer account of the tenant, not CLOSED; both are in the currency.",
        ),
        postconditions=("One balance is lower and the other higher by the amount, by one movement.",),
        sensitive_fields=SENSITIVE,
        examples=(
            Example(
                utterance="Send 40 euros to Anna on A00000031 for the concert tickets.",
                arguments={
                    "from_account_id": "A00000017",
                    "to_account_id": "A00000031",
                    "amount_cents": 4000,
                    "currency": "EUR",
                    "reason_code": "PAYMENT",
                    "memo": "Concert tickets",
                },
            ),
            Example(
                utterance="Put 500 dollars from my current into my savings account.",
                arguments={
                    "from_account_id": "A00000023",
                    "to_account_id": "A00000024",
                    "amount_cents": 50000,
                    "currency": "USD",
                    "reason_code": "OWN_ACCOUNTS",
                },
            ),
        ),
        owner=OWNER,
    ),
    execute=transfer,
    compensate=take_transfer_back,
)

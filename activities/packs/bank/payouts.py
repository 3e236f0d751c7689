"""Payouts: money that leaves the bank for a payee. Nothing brings it back."""

from pydantic import Field

from activities.packs.bank.client import Bank, Kind, Movement
from activities.packs.bank.fields import (
    DOWNSTREAM,
    OWNER,
    SENSITIVE,
    AmountCents,
    BankAccountId,
    BankMovementId,
    Currency,
    CurrencyCode,
    Memo,
    PayeeId,
    PayoutReason,
)
from activities.packs.bank.objects import OPEN
from activities.packs.bank.orders import Orders
from activities.packs.bank.sightings import Order
from activities.packs.bank.terms import Terms
from activities.tool import RemoteContext, RemoteTool
from contracts.base import Contract
from contracts.reasons import Reason
from contracts.tool import (
    Access,
    AmountUse,
    Description,
    Dispatch,
    Example,
    Idempotency,
    ResourceUse,
    SideEffect,
    ToolContract,
)


class SendBankPayout(Contract):
    """Send money from an account at the bank to a payee."""

    bank_account_id: BankAccountId
    payee_id: PayeeId
    amount_cents: AmountCents
    currency: CurrencyCode
    reason_code: PayoutReason = Field(description="Why the money is sent.", examples=["WITHDRAWAL"])
    memo: Memo | None = None


class SentBankPayout(Contract):
    """The payout as the bank carried it out."""

    payout_id: BankMovementId
    bank_account_id: BankAccountId
    payee_id: PayeeId
    amount_cents: AmountCents
    currency: CurrencyCode


def _order(context: RemoteContext, step: SendBankPayout) -> Order:
    return Order(
        kind=Kind.PAYOUT,
        party=step.payee_id,
        account_id=step.bank_account_id,
        amount_cents=step.amount_cents,
        currency=step.currency.value,
        reference=step.memo or "",
        client_reference=str(context.transaction_id),
    )


def _sent(movement: Movement) -> SentBankPayout:
    return SentBankPayout(
        payout_id=movement.movement_id,
        bank_account_id=movement.account_id or "",
        payee_id=movement.party,
        amount_cents=movement.amount_cents,
        currency=Currency(movement.currency),
    )


def send_bank_payout(bank: Bank, terms: Terms) -> RemoteTool[SendBankPayout, SentBankPayout]:
    """Make the tool that pays out through one bank."""
    handlers = Orders(bank, _order, _sent)
    return RemoteTool(
        contract=ToolContract(
            name="send_bank_payout",
            title="Send a bank payout",
            description=Description(
                does="Sends money from an account at the bank to a registered payee; it cannot be called back.",
                use_when="everything else of the intent is done or certain, and the money has to leave.",
                not_when="money moves between accounts of the ledger (transfer_customer_funds).",
                needs="an open account at the bank, a registered payee, the amount, its currency and why.",
                returns="the bank's number of the payout.",
            ),
            side_effect=SideEffect.IRREVERSIBLE,
            dispatch=Dispatch.REMOTE,
            idempotency=Idempotency.HEADER,
            downstream=DOWNSTREAM,
            timeout_seconds=terms.timeout_seconds,
            key_lifetime_seconds=terms.key_lifetime_seconds,
            in_flight_seconds=terms.in_flight_seconds,
            patience_seconds=terms.patience_seconds,
            cancel_by_key=True,
            input=SendBankPayout,
            output=SentBankPayout,
            reasons=(Reason.OBJECT_NOT_FOUND, Reason.NOT_OWNER, Reason.WRONG_STATE, Reason.CURRENCY_MISMATCH),
            resources=(
                ResourceUse(argument="bank_account_id", kind="bank_account", access=Access.TAKE, states=OPEN),
                ResourceUse(argument="payee_id", kind="bank_payee", access=Access.PAY_INTO, states=OPEN),
            ),
            amount=AmountUse(
                argument="amount_cents", currency="currency", taken_from="bank_account_id", paid_into="payee_id"
            ),
            preconditions=("Account and payee are ACTIVE; the account is in the given currency, or in any.",),
            postconditions=("The bank's book has one payout of the amount under the step's key.",),
            sensitive_fields=SENSITIVE,
            examples=(
                Example(
                    utterance="Pay the 25 euros out to my bank.",
                    arguments={
                        "bank_account_id": "B00000001",
                        "payee_id": "P00000017",
                        "amount_cents": 2500,
                        "currency": "EUR",
                        "reason_code": "WITHDRAWAL",
                        "memo": "Withdrawal of 30 November",
                    },
                ),
            ),
            owner=OWNER,
        ),
        execute=handlers.execute,
        lookup=handlers.lookup,
        cancel_by_key=handlers.cancel_by_key,
        verify=handlers.verify,
    )

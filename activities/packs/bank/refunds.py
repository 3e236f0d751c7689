"""Refunds that somebody asks for: a charge is given back, all of it or a part, for a reason that came later."""

from pydantic import Field

from activities.packs.bank.client import Bank, Kind, Movement
from activities.packs.bank.fields import (
    DOWNSTREAM,
    OWNER,
    SENSITIVE,
    AmountCents,
    BankMovementId,
    ChargeId,
    Currency,
    CurrencyCode,
    Memo,
    RefundReason,
)
from activities.packs.bank.objects import CHARGED
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


class RefundBankCharge(Contract):
    """Give a charge back, all of it or a part."""

    charge_id: ChargeId
    amount_cents: AmountCents
    currency: CurrencyCode
    reason_code: RefundReason = Field(description="Why it is given back.", examples=["GOODS_RETURNED"])
    memo: Memo | None = None


class RefundedBankCharge(Contract):
    """The refund as the bank carried it out."""

    refund_id: BankMovementId
    charge_id: ChargeId
    amount_cents: AmountCents
    currency: CurrencyCode


def _order(context: RemoteContext, step: RefundBankCharge) -> Order:
    return Order(
        kind=Kind.REFUND,
        party=step.charge_id,
        amount_cents=step.amount_cents,
        currency=step.currency.value,
        reference=step.memo or "",
        client_reference=str(context.transaction_id),
    )


def _refunded(movement: Movement) -> RefundedBankCharge:
    return RefundedBankCharge(
        refund_id=movement.movement_id,
        charge_id=movement.party,
        amount_cents=movement.amount_cents,
        currency=Currency(movement.currency),
    )


def refund_bank_charge(bank: Bank, terms: Terms) -> RemoteTool[RefundBankCharge, RefundedBankCharge]:
    """Make the tool that refunds charges through one bank."""
    handlers = Orders(bank, _order, _refunded)
    return RemoteTool(
        contract=ToolContract(
            name="refund_bank_charge",
            title="Refund a bank charge",
            description=Description(
                does="Gives a charge of a card back to that card, all of it or a part.",
                use_when="a charge of charge_bank_card was right and is given back for a reason that came later.",
                not_when="the charge is of this very intent: its compensation refunds it.",
                needs="the charge, the amount, at most what is left of it, its currency and why.",
                returns="the bank's number of the refund; it cannot be undone.",
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
            input=RefundBankCharge,
            output=RefundedBankCharge,
            reasons=(
                Reason.OBJECT_NOT_FOUND,
                Reason.NOT_OWNER,
                Reason.WRONG_STATE,
                Reason.CURRENCY_MISMATCH,
                Reason.FUNDS_INSUFFICIENT,
            ),
            resources=(ResourceUse(argument="charge_id", kind="bank_charge", access=Access.TAKE, states=CHARGED),),
            amount=AmountUse(argument="amount_cents", currency="currency", taken_from="charge_id"),
            preconditions=("At least the amount is left of the charge, which is in the given currency.",),
            postconditions=("The bank's book has one refund of the amount under the step's key.",),
            sensitive_fields=SENSITIVE,
            examples=(
                Example(
                    utterance="Give the customer 10 euros back on the card, one of the goods came broken.",
                    arguments={
                        "charge_id": "BK0000000042",
                        "amount_cents": 1000,
                        "currency": "EUR",
                        "reason_code": "GOODS_RETURNED",
                        "memo": "Order 4711, item 2",
                    },
                ),
            ),
            owner=OWNER,
        ),
        execute=handlers.execute,
        lookup=handlers.lookup,
        cancel_by_key=handlers.cancel_by_key,
    )

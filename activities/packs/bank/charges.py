"""Charges: money taken from a card. Compensation gives back what is left of it, after forbidding the charge's key."""

from dataclasses import dataclass

from pydantic import Field

from activities.packs.bank.client import Bank, Kind, Movement
from activities.packs.bank.fields import (
    DOWNSTREAM,
    OWNER,
    SENSITIVE,
    AmountCents,
    CardId,
    ChargeId,
    ChargeReason,
    Currency,
    CurrencyCode,
    Memo,
)
from activities.packs.bank.objects import OPEN
from activities.packs.bank.orders import Orders
from activities.packs.bank.sightings import Order, carry_out, fenced
from activities.packs.bank.terms import Terms
from activities.tool import (
    Compensated,
    OutcomeUnknownError,
    RemoteContext,
    RemoteTool,
    Unknown,
)
from contracts.base import Contract
from contracts.errors import SagaError
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


class ChargeBankCard(Contract):
    """Take money from a card."""

    card_id: CardId
    amount_cents: AmountCents
    currency: CurrencyCode
    reason_code: ChargeReason = Field(description="Why the card is charged.", examples=["PURCHASE"])
    memo: Memo | None = None


class ChargedBankCard(Contract):
    """The charge as the bank carried it out."""

    charge_id: ChargeId
    card_id: CardId
    amount_cents: AmountCents
    currency: CurrencyCode


@dataclass(frozen=True)
class Returns:
    """Gives charges back, at one bank."""

    bank: Bank

    async def compensate(
        self, context: RemoteContext, step: ChargeBankCard, output: ChargedBankCard | None
    ) -> Compensated:
        """Forbid the charge's key, then give back all that is left of what landed under it, in one order.

        The charge is found by its key, so it needs no output; what did not land is not refunded.
        """
        del output
        assert context.execute_remote_key is not None  # noqa: S101 - every compensation has it
        answer = await self.bank.fence(context.execute_remote_key)
        charge = fenced(answer, _order(context, step))
        if isinstance(charge, Unknown):
            raise OutcomeUnknownError(f"The bank does not say what became of the charge: {charge.detail}")
        if isinstance(charge, Movement) and answer.refunded_cents < charge.amount_cents:
            await self._give_back(context, charge, charge.amount_cents - answer.refunded_cents)
        return Compensated()

    async def _give_back(self, context: RemoteContext, charge: Movement, left_cents: int) -> None:
        """Refund the rest, whatever it is by then; where that is not what was left, the bank's own count decides."""
        rest = Order(
            kind=Kind.REFUND,
            party=charge.movement_id,
            amount_cents=None,
            currency=charge.currency,
            client_reference=str(context.transaction_id),
        )
        try:
            refund = await carry_out(self.bank, context.remote_key, rest)
        except SagaError as error:
            if error.reason is not Reason.FUNDS_INSUFFICIENT:
                raise
        else:
            if refund.amount_cents == left_cents:
                return
        await self._require_given_back(charge)

    async def _require_given_back(self, charge: Movement) -> None:
        answer = await self.bank.look_up(charge.key)
        if answer.refunded_cents != charge.amount_cents:
            raise OutcomeUnknownError(
                f"Of charge {charge.movement_id} over {charge.amount_cents} cents the bank has given back"
                f" {answer.refunded_cents}; it is tried again.",
                details={"charge_id": charge.movement_id, "refunded_cents": answer.refunded_cents},
            )


def _order(context: RemoteContext, step: ChargeBankCard) -> Order:
    return Order(
        kind=Kind.CHARGE,
        party=step.card_id,
        amount_cents=step.amount_cents,
        currency=step.currency.value,
        reference=step.memo or "",
        client_reference=str(context.transaction_id),
    )


def _charged(movement: Movement) -> ChargedBankCard:
    return ChargedBankCard(
        charge_id=movement.movement_id,
        card_id=movement.party,
        amount_cents=movement.amount_cents,
        currency=Currency(movement.currency),
    )


def charge_bank_card(bank: Bank, terms: Terms) -> RemoteTool[ChargeBankCard, ChargedBankCard]:
    """Make the tool that charges cards through one bank."""
    handlers = Orders(bank, _order, _charged)
    return RemoteTool(
        contract=ToolContract(
            name="charge_bank_card",
            title="Charge a bank card",
            description=Description(
                does="Takes money from the principal's registered card.",
                use_when="the customer pays by card.",
                not_when="the money is on an account of the ledger (freeze_account_funds, debit_frozen_funds).",
                needs="a registered card of the principal, the amount, its currency and why.",
                returns="the bank's number of the charge; refund_bank_charge gives it back later.",
            ),
            side_effect=SideEffect.REVERSIBLE,
            compensates_by="Forbids the charge's key at the bank and refunds what is left of the charge, if it landed.",
            dispatch=Dispatch.REMOTE,
            idempotency=Idempotency.HEADER,
            downstream=DOWNSTREAM,
            timeout_seconds=terms.timeout_seconds,
            key_lifetime_seconds=terms.key_lifetime_seconds,
            in_flight_seconds=terms.in_flight_seconds,
            patience_seconds=terms.patience_seconds,
            cancel_by_key=True,
            compensations_per_minute=terms.compensations_per_minute,
            input=ChargeBankCard,
            output=ChargedBankCard,
            reasons=(Reason.OBJECT_NOT_FOUND, Reason.NOT_OWNER, Reason.WRONG_STATE, Reason.CURRENCY_MISMATCH),
            resources=(ResourceUse(argument="card_id", kind="bank_card", access=Access.TAKE, states=OPEN),),
            amount=AmountUse(argument="amount_cents", currency="currency", taken_from="card_id"),
            preconditions=("The card is ACTIVE, in the given currency or in any, and the bank does not decline it.",),
            postconditions=("The bank's book has one charge of the amount under the step's key.",),
            sensitive_fields=SENSITIVE,
            examples=(
                Example(
                    utterance="Take the 25 euros from my card.",
                    arguments={
                        "card_id": "K00000017",
                        "amount_cents": 2500,
                        "currency": "EUR",
                        "reason_code": "PURCHASE",
                        "memo": "Order 4711",
                    },
                ),
            ),
            owner=OWNER,
        ),
        execute=handlers.execute,
        lookup=handlers.lookup,
        compensate=Returns(bank).compensate,
        cancel_by_key=handlers.cancel_by_key,
        verify=handlers.verify,
    )

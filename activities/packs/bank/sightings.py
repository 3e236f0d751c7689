"""What the bank's word about a key means for the order that we know under it.

A key that is there is not enough: amount, currency and parties have to be the order's, else somebody else's money
would count as ours.
"""

from dataclasses import dataclass

from activities.packs.bank.client import Bank, KeyAnswer, KeyStatus, Kind, Movement
from activities.tool import NotLanded, OutcomeUnknownError, Unknown, WorldMoved
from contracts.base import JsonObject
from contracts.errors import SagaError
from contracts.reasons import EffectOutcome, Reason


@dataclass(frozen=True, kw_only=True)
class Order:
    """One order, as the bank has to have carried it out. `amount_cents` None: all that is left of the charge."""

    kind: Kind
    party: str
    amount_cents: int | None
    currency: str
    account_id: str | None = None
    reference: str = ""
    client_reference: str
    """Our serial number of the write, the same whenever it is sent again: both books are joined on it."""

    def body(self) -> JsonObject:
        """Write it as the bank takes it."""
        names = {Kind.PAYOUT: "payee_id", Kind.CHARGE: "card_id", Kind.REFUND: "charge_id"}
        body: JsonObject = {
            names[self.kind]: self.party,
            "currency": self.currency,
            "reference": self.reference,
            "client_reference": self.client_reference,
        }
        if self.amount_cents is not None:
            body["amount_cents"] = self.amount_cents
        if self.account_id is not None:
            body["account_id"] = self.account_id
        return body

    def differences(self, movement: Movement) -> JsonObject:
        """List where a movement is not this order: what was wanted, what is there."""
        pairs = {
            "kind": (self.kind.value, movement.kind.value),
            "party": (self.party, movement.party),
            "account_id": (self.account_id, movement.account_id),
            "amount_cents": (self.amount_cents or movement.amount_cents, movement.amount_cents),
            "currency": (self.currency, movement.currency),
        }
        return {name: {"wanted": wanted, "found": found} for name, (wanted, found) in pairs.items() if wanted != found}


async def carry_out(bank: Bank, key: str, order: Order) -> Movement:
    """Have the bank carry an order out. Raises as `Bank.order`; an echo of another order leaves the outcome unknown."""
    movement = await bank.order(order.kind, key, order.body())
    if different := order.differences(movement):
        raise OutcomeUnknownError(
            f"The bank's answer to {key} differs in {', '.join(different)}; it is looked up.",
            details={"differences": different},
        )
    return movement


async def look_up(bank: Bank, key: str, order: Order) -> Movement | NotLanded | Unknown:
    """Ask what became of the order under its key. Raises SagaError(MISMATCH)."""
    return _meaning(await bank.look_up(key), order)


async def read_back(bank: Bank, key: str, order: Order) -> WorldMoved | None:
    """Compare what the book has under the key of a landed order. Raises SagaError(MISMATCH), OutcomeUnknownError.

    What was given back of it is another order's work, so it says nothing against this one.
    """
    answer = await bank.look_up(key)
    found = _meaning(answer, order)
    if not isinstance(found, Movement):
        raise OutcomeUnknownError(f"The bank said that {key} landed, and its book says {answer.status}.")
    if answer.refunded_cents:
        return WorldMoved(
            detail=f"{answer.refunded_cents} of {found.amount_cents} cents of {found.movement_id} were given back"
            " by somebody else"
        )
    return None


async def fence(bank: Bank, key: str, order: Order) -> Movement | NotLanded | Unknown:
    """Forbid the key; NotLanded is then for ever. Raises SagaError(MISMATCH)."""
    return fenced(await bank.fence(key), order)


def fenced(answer: KeyAnswer, order: Order) -> Movement | NotLanded | Unknown:
    """Read the answer to a fence. Raises SagaError(MISMATCH)."""
    if not answer.fenced:
        return Unknown(detail=f"The bank took the cancellation of {answer.key} and says that it is not cancelled.")
    return _meaning(answer, order)


def _meaning(answer: KeyAnswer, order: Order) -> Movement | NotLanded | Unknown:
    if (answer.status is KeyStatus.LANDED) != bool(answer.movements):
        return Unknown(detail=f"The bank says {answer.status} and tells {len(answer.movements)} movements.")
    if len(answer.movements) > 1:
        raise _mismatch(answer, {"movements": [movement.movement_id for movement in answer.movements]})
    if answer.movements:
        if different := order.differences(answer.movements[0]):
            raise _mismatch(answer, different)
        return answer.movements[0]
    if answer.status is KeyStatus.DECLINED and answer.may_still_land_until is None:
        declined = SagaError(Reason.WRONG_STATE, f"The bank declined the order under key {answer.key}.")
        return NotLanded(refused=declined)
    return NotLanded(changes_until=answer.may_still_land_until)


def _mismatch(answer: KeyAnswer, different: JsonObject) -> SagaError:
    return SagaError(
        Reason.MISMATCH,
        f"Under key {answer.key} the bank carried out another order: {', '.join(different)} differ.",
        details={"remote_key": answer.key, "differences": different},
        outcome=EffectOutcome.UNKNOWN,
    )

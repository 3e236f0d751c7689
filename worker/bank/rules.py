"""The bank itself: what an order does to the book, by key. No wire and no waiting in here.

A key is remembered for its lifetime, counted from the first thing that happened under it: same order, same answer;
another order is refused. After that it is new again, as at real providers, so a late re-send moves money twice. A
fence has no lifetime.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from worker.bank.book import Book, Entry, Event, Order
from worker.bank.wire import ErrorCode, KeyAnswer, KeyStatus, Kind, Movement

DECLINED_PARTIES: Final = ("K9", "P9")
"""Cards and payees whose id begins so are always declined."""


class BankError(Exception):
    """The bank did not do it, and says why."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        """Carry a code of the wire and a sentence."""
        super().__init__(message)
        self.code = code


class Clock:
    """The bank's clock: it can be moved forward, and never goes back behind its book."""

    def __init__(
        self, now: Callable[[], datetime] = lambda: datetime.now(UTC), *, behind: datetime | None = None
    ) -> None:
        """Tell the time of `now`, or go on from `behind` if that is later."""
        self._now = now
        self._ahead = max(timedelta(), behind - now()) if behind else timedelta()

    def __call__(self) -> datetime:
        """Tell the time, in UTC."""
        return self._now() + self._ahead

    def advance(self, seconds: float) -> None:
        """Move it forward."""
        self._ahead += timedelta(seconds=seconds)


class Bank:
    """Orders, lookups and fences over one book; each call is whole before the next begins."""

    def __init__(self, book: Book, clock: Clock, *, key_lifetime_seconds: float) -> None:
        """Serve `book`; keys are new again after their lifetime."""
        self.book = book
        self.clock = clock
        self._lifetime = timedelta(seconds=key_lifetime_seconds)
        self.in_hand: dict[str, datetime] = {}
        """Keys whose order was received and not carried out yet, and until when it will have been."""

    def order(self, key: str, order: Order, *, later: timedelta | None = None, extra_cents: int = 0) -> Entry:
        """Carry an order out, or give the answer that this key has had; with `later`, accept it for then.

        `extra_cents`: how much more than was ordered is moved, by mistake.

        Raises BankError; a decline is in the book too and stays the key's answer.
        """
        self.land_due()
        self._refuse_fenced(key)
        known = self._living(key)
        if known and known[0].order != order:
            raise BankError(ErrorCode.KEY_REUSED, f"Key {key} was used with another order.")
        if not known:
            self._refuse_wrong_refund(order)
            if later is not None:
                now = self.clock()
                return self.book.append(Event.ACCEPTED, key, at=now, order=order, due_at=now + later)
            return self._carry_out(key, order, extra_cents)
        last = known[-1]
        if last.event is Event.ACCEPTED:
            raise BankError(ErrorCode.IN_PROGRESS, f"An order with key {key} is in progress.")
        if last.event is Event.DECLINED:
            raise self._decline(order)
        return last

    def land_due(self) -> None:
        """Carry out what was accepted and is due now; a fence that came first wins."""
        now = self.clock()
        for entry in self.book.pending:
            if entry.due_at is not None and entry.due_at <= now and entry.order is not None:
                try:
                    self._carry_out(entry.key, entry.order)
                except BankError as error:
                    if error.code not in (ErrorCode.DECLINED, ErrorCode.NOTHING_LEFT):
                        raise

    def next_due(self) -> datetime | None:
        """When the next accepted order is due; None if there is none."""
        return min((entry.due_at for entry in self.book.pending if entry.due_at), default=None)

    def fence(self, key: str) -> KeyAnswer:
        """Forbid a key for ever, and tell what had become of it. Once is enough, twice is the same."""
        self.land_due()
        if not self._is_fenced(key):
            self.book.append(Event.FENCED, key, at=self.clock())
        return self.look_up(key)

    def look_up(self, key: str) -> KeyAnswer:
        """Tell what became of a key, however old it is."""
        self.land_due()
        found = self.book.of_key(key)
        landed = [entry for entry in found if entry.event is Event.LANDED]
        fenced = self._is_fenced(key)
        accepted = None if not found or found[-1].event is not Event.ACCEPTED else found[-1].due_at
        pending = None if fenced else self.in_hand.get(key, accepted)
        if landed:
            status = KeyStatus.LANDED
        elif pending:
            status = KeyStatus.PENDING
        elif any(entry.event is Event.DECLINED for entry in found):
            status = KeyStatus.DECLINED
        else:
            status = KeyStatus.ABSENT
        return KeyAnswer(
            key=key,
            status=status,
            fenced=fenced,
            movements=tuple(movement_of(entry) for entry in landed),
            refunded_cents=sum(self._refunded_cents(movement_id(entry)) for entry in landed),
            may_still_land_until=pending,
            now=self.clock(),
        )

    def _carry_out(self, key: str, order: Order, extra_cents: int = 0) -> Entry:
        cents = order.amount_cents or 0
        if order.kind is Kind.REFUND:
            left_cents = self._left_cents(order.party)
            cents = left_cents if order.amount_cents is None else order.amount_cents
            declined = not 0 < cents <= left_cents
        else:
            declined = order.party.startswith(DECLINED_PARTIES)
        if declined:
            self.book.append(Event.DECLINED, key, at=self.clock(), order=order)
            raise self._decline(order)
        return self.book.append(Event.LANDED, key, at=self.clock(), order=order, moved_cents=cents + extra_cents)

    def _decline(self, order: Order) -> BankError:
        if order.kind is Kind.REFUND:
            return BankError(
                ErrorCode.NOTHING_LEFT, f"Of charge {order.party} {self._left_cents(order.party)} cents are left."
            )
        return BankError(ErrorCode.DECLINED, f"{order.party} was declined.")

    def _refuse_wrong_refund(self, order: Order) -> None:
        if order.kind is not Kind.REFUND:
            return
        charge = self._charge(order.party).order
        if charge is not None and charge.currency is not order.currency:
            raise BankError(ErrorCode.INVALID, f"Charge {order.party} is in {charge.currency}.")

    def _refuse_fenced(self, key: str) -> None:
        if self._is_fenced(key):
            raise BankError(ErrorCode.KEY_FENCED, f"Key {key} was cancelled; nothing lands under it.")

    def _is_fenced(self, key: str) -> bool:
        return any(entry.event is Event.FENCED for entry in self.book.of_key(key))

    def _living(self, key: str) -> tuple[Entry, ...]:
        """List the entries of the key's present life; empty when it is new."""
        life: list[Entry] = []
        for entry in self.book.of_key(key):
            if life and life[-1].event is not Event.ACCEPTED and entry.at - life[0].at >= self._lifetime:
                life = []
            life.append(entry)
        if life and life[-1].event is not Event.ACCEPTED and self.clock() - life[0].at >= self._lifetime:
            return ()
        return tuple(life)

    def _charge(self, wanted: str) -> Entry:
        for entry in self.book.entries:
            is_charge = entry.order is not None and entry.order.kind is Kind.CHARGE
            if is_charge and entry.event is Event.LANDED and movement_id(entry) == wanted:
                return entry
        raise BankError(ErrorCode.NOT_FOUND, f"There is no charge {wanted}.")

    def _refunded_cents(self, wanted: str) -> int:
        return sum(
            entry.moved_cents
            for entry in self.book.entries
            if entry.order and entry.order.kind is Kind.REFUND and entry.order.party == wanted
        )

    def _left_cents(self, wanted: str) -> int:
        return self._charge(wanted).moved_cents - self._refunded_cents(wanted)


def movement_id(entry: Entry) -> str:
    """Name a movement: BK and its number in the book."""
    return f"BK{entry.number:010d}"


def movement_of(entry: Entry) -> Movement:
    """Tell a landed entry as the wire does."""
    assert entry.order is not None  # noqa: S101 - every landed entry has its order
    return Movement(
        movement_id=movement_id(entry),
        kind=entry.order.kind,
        key=entry.key,
        party=entry.order.party,
        account_id=entry.order.account_id,
        amount_cents=entry.moved_cents,
        currency=entry.order.currency,
        reference=entry.order.reference,
        client_reference=entry.order.client_reference,
        landed_at=entry.at,
    )

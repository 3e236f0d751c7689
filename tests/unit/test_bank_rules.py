"""The bank's rules and its book, without wire and without waiting."""

import errno
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

import pytest

from worker.bank.book import Book, BookError, Event, Order
from worker.bank.rules import Bank, BankError, Clock, movement_id
from worker.bank.wire import Currency, ErrorCode, KeyStatus, Kind

LIFETIME_SECONDS = 60
PAYOUT = Order(kind=Kind.PAYOUT, party="P00000001", amount_cents=500, currency=Currency.EUR, reference="")
CHARGE = Order(kind=Kind.CHARGE, party="K00000001", amount_cents=500, currency=Currency.EUR, reference="")
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def book_path(tmp_path: Path) -> Path:
    return tmp_path / "book.jsonl"


@pytest.fixture
def bank(book_path: Path) -> Bank:
    return Bank(Book.open(book_path), Clock(lambda: START), key_lifetime_seconds=LIFETIME_SECONDS)


def refund_of(charge: str, amount_cents: int | None = None, currency: Currency = Currency.EUR) -> Order:
    return Order(kind=Kind.REFUND, party=charge, amount_cents=amount_cents, currency=currency, reference="")


def moved(bank: Bank) -> list[int]:
    return [entry.moved_cents for entry in bank.book.entries if entry.event is Event.LANDED]


def refused(bank: Bank, key: str, order: Order, *, later: timedelta | None = None) -> ErrorCode:
    with pytest.raises(BankError) as caught:
        bank.order(key, order, later=later)
    return caught.value.code


def test_a_repeat_of_a_key_gets_the_first_answer_and_moves_nothing(bank: Bank) -> None:
    first = bank.order("k", PAYOUT)

    again = bank.order("k", PAYOUT)

    assert again == first
    assert moved(bank) == [500]


@pytest.mark.parametrize(
    "change",
    [{"amount_cents": 501}, {"party": "P00000002"}, {"currency": Currency.USD}, {"reference": "x"}],
)
def test_a_key_with_another_order_is_refused(bank: Bank, change: dict[str, object]) -> None:
    bank.order("k", PAYOUT)

    assert refused(bank, "k", PAYOUT.model_copy(update=change)) is ErrorCode.KEY_REUSED
    assert moved(bank) == [500]


def test_a_key_is_new_again_after_its_lifetime_so_a_late_resend_pays_twice(bank: Bank) -> None:
    bank.order("k", PAYOUT)
    bank.clock.advance(LIFETIME_SECONDS - 0.001)
    bank.order("k", PAYOUT)
    bank.clock.advance(0.001)

    bank.order("k", PAYOUT)

    assert moved(bank) == [500, 500]
    assert len(bank.look_up("k").movements) == 2


def test_a_second_life_of_a_key_lasts_as_long_as_the_first(bank: Bank) -> None:
    bank.order("k", PAYOUT)
    bank.clock.advance(LIFETIME_SECONDS)
    second = bank.order("k", PAYOUT)
    bank.clock.advance(LIFETIME_SECONDS - 1)

    assert bank.order("k", PAYOUT) == second
    assert moved(bank) == [500, 500]


def test_a_decline_stays_the_answer_of_its_key(bank: Bank) -> None:
    declined = PAYOUT.model_copy(update={"party": "P90000001"})

    assert [refused(bank, "k", declined) for _ in range(2)] == [ErrorCode.DECLINED] * 2
    assert bank.look_up("k").status is KeyStatus.DECLINED
    assert moved(bank) == []


def test_a_fenced_key_never_lands_not_even_after_its_lifetime(bank: Bank) -> None:
    bank.fence("k")
    bank.clock.advance(10 * LIFETIME_SECONDS)

    assert refused(bank, "k", PAYOUT) is ErrorCode.KEY_FENCED
    assert moved(bank) == []


def test_a_fence_tells_what_had_landed_and_forbids_a_second_landing(bank: Bank) -> None:
    bank.order("k", PAYOUT)

    answer = bank.fence("k")
    bank.clock.advance(LIFETIME_SECONDS)

    assert (answer.status, answer.fenced, len(answer.movements)) == (KeyStatus.LANDED, True, 1)
    assert refused(bank, "k", PAYOUT) is ErrorCode.KEY_FENCED
    assert moved(bank) == [500]


def test_fencing_twice_writes_one_entry(bank: Bank) -> None:
    bank.fence("k")
    bank.fence("k")

    assert [entry.event for entry in bank.book.entries] == [Event.FENCED]


def test_an_accepted_order_lands_when_it_is_due_and_not_before(bank: Bank) -> None:
    bank.order("k", PAYOUT, later=timedelta(seconds=5))
    bank.clock.advance(4.9)
    before = bank.look_up("k")
    bank.clock.advance(0.1)
    after = bank.look_up("k")

    assert (before.status, before.may_still_land_until) == (KeyStatus.PENDING, START + timedelta(seconds=5))
    assert (after.status, after.may_still_land_until) == (KeyStatus.LANDED, None)
    assert moved(bank) == [500]


def test_a_repeat_of_an_accepted_order_is_in_progress(bank: Bank) -> None:
    bank.order("k", PAYOUT, later=timedelta(seconds=5))

    assert refused(bank, "k", PAYOUT) is ErrorCode.IN_PROGRESS


def test_a_fence_wins_over_an_order_that_was_accepted_before(bank: Bank) -> None:
    bank.order("k", PAYOUT, later=timedelta(seconds=5))

    answer = bank.fence("k")
    bank.clock.advance(10)
    bank.land_due()

    assert (answer.status, answer.may_still_land_until) == (KeyStatus.ABSENT, None)
    assert moved(bank) == []


def test_an_accepted_order_lands_after_its_keys_lifetime_once(bank: Bank) -> None:
    bank.order("k", PAYOUT, later=timedelta(seconds=2 * LIFETIME_SECONDS))
    bank.clock.advance(2 * LIFETIME_SECONDS)

    bank.land_due()
    bank.land_due()

    assert moved(bank) == [500]


def test_refunds_never_exceed_what_is_left_of_their_charge(bank: Bank) -> None:
    charge = movement_id(bank.order("c", CHARGE))
    bank.order("r1", refund_of(charge, 300))

    assert refused(bank, "r2", refund_of(charge, 201)) is ErrorCode.NOTHING_LEFT
    bank.order("r3", refund_of(charge, 200))
    assert refused(bank, "r4", refund_of(charge)) is ErrorCode.NOTHING_LEFT
    assert moved(bank) == [500, 300, 200]
    assert bank.look_up("c").refunded_cents == 500


def test_a_refund_without_an_amount_gives_back_the_rest(bank: Bank) -> None:
    charge = movement_id(bank.order("c", CHARGE))
    bank.order("r1", refund_of(charge, 120))

    bank.order("r2", refund_of(charge))

    assert moved(bank) == [500, 120, 380]


def test_refunds_that_land_late_together_do_not_exceed_the_charge(bank: Bank) -> None:
    charge = movement_id(bank.order("c", CHARGE))
    bank.order("r1", refund_of(charge, 400), later=timedelta(seconds=1))
    bank.order("r2", refund_of(charge, 400), later=timedelta(seconds=1))
    bank.clock.advance(1)

    bank.land_due()

    assert moved(bank) == [500, 400]
    assert bank.look_up("r2").status is KeyStatus.DECLINED


@pytest.mark.parametrize("charge", ["BK0000000099", "BK0000000001"])
def test_only_a_charge_can_be_refunded(bank: Bank, charge: str) -> None:
    bank.order("p", PAYOUT)

    assert refused(bank, "r", refund_of(charge)) is ErrorCode.NOT_FOUND


def test_a_refund_in_another_currency_is_refused(bank: Bank) -> None:
    charge = movement_id(bank.order("c", CHARGE))

    assert refused(bank, "r", refund_of(charge, 1, Currency.USD)) is ErrorCode.INVALID


def test_a_book_opened_again_knows_its_keys_fences_and_what_is_pending(bank: Bank, book_path: Path) -> None:
    first = bank.order("k", PAYOUT)
    bank.fence("f")
    bank.order("late", PAYOUT, later=timedelta(seconds=5))
    bank.book.close()

    book = Book.open(book_path)
    again = Bank(book, Clock(lambda: START, behind=book.last_at), key_lifetime_seconds=LIFETIME_SECONDS)

    assert again.order("k", PAYOUT) == first
    assert refused(again, "f", PAYOUT) is ErrorCode.KEY_FENCED
    again.clock.advance(5)
    again.land_due()
    assert moved(again) == [500, 500]


def test_the_clock_never_goes_back_behind_the_book(bank: Bank, book_path: Path) -> None:
    bank.clock.advance(1_000)
    bank.order("k", PAYOUT)
    bank.book.close()

    clock = Clock(lambda: START, behind=Book.open(book_path).last_at)

    assert clock() == START + timedelta(seconds=1_000)


def test_a_line_that_was_never_finished_is_cut_off(bank: Bank, book_path: Path) -> None:
    bank.order("k", PAYOUT)
    bank.book.close()
    whole = book_path.read_bytes()
    book_path.write_bytes(whole + whole[: len(whole) // 2])

    book = Book.open(book_path)

    assert len(book.entries) == 1
    assert book_path.read_bytes() == whole


@pytest.mark.parametrize(
    ("kept", "said"),
    [((2,), "line 1: has number 2"), ((1, 1), "line 2: has number 1"), ((0, 1), "line 1: is no entry")],
)
def test_a_book_that_was_edited_is_refused(bank: Bank, book_path: Path, kept: tuple[int, ...], said: str) -> None:
    bank.order("a", PAYOUT)
    bank.order("b", PAYOUT)
    bank.book.close()
    lines = [b"{}", *book_path.read_bytes().splitlines()]
    book_path.write_bytes(b"".join(lines[number] + b"\n" for number in kept))

    with pytest.raises(BookError, match=said):
        Book.open(book_path)


def test_an_entry_is_on_the_disk_before_anybody_is_told(
    bank: Bank, book_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bytes] = []

    def sync(_: int) -> None:
        synced.append(book_path.read_bytes())

    monkeypatch.setattr("os.fsync", sync)

    bank.order("k", PAYOUT)

    assert [content.count(b"\n") for content in synced] == [1]


def test_a_bank_that_cannot_write_ends_at_once(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    def end(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr("os.fsync", full)
    monkeypatch.setattr("os._exit", end)

    with pytest.raises(SystemExit):
        bank.order("k", PAYOUT)


def test_two_banks_never_share_a_book(bank: Bank, book_path: Path) -> None:
    with pytest.raises(BookError, match="in use by another bank"):
        Book.open(book_path)
    bank.book.close()

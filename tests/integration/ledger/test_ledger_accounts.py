# ruff: noqa: RUF001 - look-alike characters are the point
"""Locks, balances, texts and what admission reads, on a real PostgreSQL."""

from typing import TYPE_CHECKING, Any

import pytest

from activities.packs.ledger import PACK
from contracts.reasons import Reason
from tests.support.ledger import ANNA, BEN, CASH, Bank, refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class TestLock:
    """Locking and unlocking."""

    async def test_a_lock_keeps_new_things_in_and_lets_older_ones_go_on(self, bank: Bank) -> None:
        account, friend = bank.account(5000), bank.account(principal=BEN)
        older = await bank.freeze(account, 1000)

        await bank.lock(account)

        refusals = [await refused(bank.freeze(account)), await refused(bank.transfer(account, friend))]
        await bank.credit(account, 1)
        await bank.compensate(older)
        assert {error.reason for error in refusals} == {Reason.WRONG_STATE}
        assert bank.money(account) == (5001, 0)

    async def test_an_unlocked_account_works_again(self, bank: Bank) -> None:
        account = bank.account(5000)
        lock = await bank.lock(account)

        unlocked = (await bank.unlock(account)).output
        await bank.freeze(account)

        assert unlocked.lock_transaction_id == lock.output.lock_transaction_id == lock.transaction_id
        assert bank.one("select reason_code, lifted_at is not null as lifted from ledger.locks") == {
            "reason_code": "SUSPECTED_FRAUD",
            "lifted": True,
        }

    @pytest.mark.parametrize("state", ["FROZEN", "CLOSED"])
    async def test_only_an_active_account_is_locked(self, bank: Bank, state: str) -> None:
        error = await refused(bank.lock(bank.account(state=state)))

        assert (error.reason, error.info.details["state"]) == (Reason.WRONG_STATE, state)

    @pytest.mark.parametrize("state", ["ACTIVE", "CLOSED"])
    async def test_only_a_frozen_account_is_unlocked(self, bank: Bank, state: str) -> None:
        error = await refused(bank.unlock(bank.account(state=state)))

        assert (error.reason, error.info.details["state"]) == (Reason.WRONG_STATE, state)

    @pytest.mark.parametrize("verb", ["lock", "unlock"])
    async def test_only_the_owner_of_an_account_that_exists(self, bank: Bank, verb: str) -> None:
        act: Callable[[str], Awaitable[Any]] = getattr(bank, verb)

        other = bank.account(principal=BEN, state="ACTIVE" if verb == "lock" else "FROZEN")

        reasons = [(await refused(act(account))).reason for account in ("A99999999", other)]

        assert reasons == [Reason.OBJECT_NOT_FOUND, Reason.NOT_OWNER]


class TestCheck:
    """Reading a balance."""

    async def test_what_is_held_is_not_available(self, bank: Bank) -> None:
        account = bank.account(5000, limit_cents=4000)
        await bank.freeze(account, 1200)
        await bank.lock(account)

        read = (await bank.step("check_account_balance", {"account_id": account})).output

        assert (read.balance_cents, read.held_cents, read.available_cents) == (5000, 1200, 3800)
        assert (read.state, read.currency, read.limit_cents) == ("FROZEN", "EUR", 4000)

    async def test_nobody_reads_what_is_not_theirs(self, bank: Bank) -> None:
        other = bank.account(principal=BEN)

        reasons = [
            (await refused(bank.step("check_account_balance", {"account_id": account}))).reason
            for account in ("A99999999", other)
        ]

        assert reasons == [Reason.OBJECT_NOT_FOUND, Reason.NOT_OWNER]


class TestFidelity:
    """Texts arrive as they were sent."""

    @pytest.mark.parametrize(
        "memo",
        [
            "",
            "   ",
            "trailing  ",
            "“curly”",
            "e\u0301",
            "\u00e9",
            "👩\u200d👩\u200d👧",
            "a\r\nb\tc",
            "’; drop table x; --",
            "%s %(x)s",
            "x" * 140,
        ],
    )
    async def test_a_memo_arrives_as_it_was_sent(self, bank: Bank, memo: str) -> None:
        account = bank.account(5000)

        hold = (await bank.freeze(account, memo=memo)).output
        await bank.debit(hold.hold_id, memo=memo)

        rows = bank.owner(
            "select memo, octet_length(memo) as bytes from ledger.holds union all"
            " select memo, octet_length(memo) from ledger.movements where operation_type = 'CAPTURE'"
        )
        assert rows == [{"memo": memo, "bytes": len(memo.encode())}] * 2

    async def test_missing_null_and_empty_stay_three_things_in_the_effect(self, bank: Bank) -> None:
        account = bank.account(5000)

        for more in ({}, {"memo": None}, {"memo": ""}):
            await bank.freeze(account, 1, **more)

        rows = bank.owner(
            "select arguments::jsonb ? 'memo' as given, arguments::jsonb ->> 'memo' as memo"
            " from backstay.effects order by transaction_id"
        )
        assert [(row["given"], row["memo"]) for row in rows] == [(False, None), (True, None), (True, "")]
        holds = bank.owner("select memo from ledger.holds order by hold_id")
        assert [row["memo"] for row in holds] == [None, None, ""]


class TestResources:
    """What admission reads."""

    async def test_every_kind_comes_with_owner_state_and_what_is_available(self, bank: Bank) -> None:
        account, friend = bank.account(5000, limit_cents=3000), bank.account(principal=BEN)
        hold = (await bank.freeze(account, 1000)).output.hold_id
        overdue = (await bank.freeze(account, 10)).output.hold_id
        bank.overdue(overdue)
        capture = (await bank.captured(account, 200)).output.capture_id
        gift = (await bank.captured(account, 300, friend)).output.capture_id
        transfer = (await bank.transfer(account, friend, 40)).output.movement_id
        back = await bank.transfer(account, friend, 50)
        await bank.compensate(back)
        back_id = back.output.movement_id
        opening = bank.one("select min(movement_id) as id from ledger.movements")["id"]
        wanted = [account, CASH, hold, overdue, capture, gift, transfer, back_id, opening, "?"]

        seen: dict[str, tuple[Any, ...]] = {}
        for query in PACK.resources.values():
            for row in await bank.database.all(query, (wanted,)):
                assert (row["tenant"], row["currency"]) == ("bank", "EUR")
                seen[row["object_id"]] = (row["principal"], row["state"], row["available_cents"], row["limit_cents"])

        assert seen == {
            account: (ANNA, "ACTIVE", 5000 - 1010 - 500 - 40, 3000),
            CASH: (None, "ACTIVE", None, None),
            hold: (ANNA, "OPEN", 1000, None),
            overdue: (ANNA, "EXPIRED", 0, None),
            capture: (ANNA, "CAPTURED", 200, None),
            gift: (BEN, "CAPTURED", 300, None),
            transfer: (BEN, "POSTED", 40, None),
            back_id: (BEN, "REVERSED", 50, None),
            opening: (ANNA, "FINAL", 5000, None),
        }

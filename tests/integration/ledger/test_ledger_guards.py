"""What the database itself refuses, whatever a handler does."""

import re
from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import errors, sql

from activities.database import ROLE_APP, ROLE_READONLY
from activities.packs.ledger import fields
from tests.support.ledger import ANNA, CASH, MERCHANT, Bank

MOVEMENT = (
    "insert into ledger.movements (tenant, debit_account, credit_account, amount_cents, currency, operation_type,"
    " reason_code, transaction_id, step_key, intent_id) values (%s, %s, %s, %s, %s, %s, 'GIFT', 1, 'k', 'i')"
)
HOLD = (
    "insert into ledger.holds (tenant, account_id, amount_cents, currency, reason_code, expires_at, transaction_id,"
    " step_key, intent_id) values ('bank', %s, %s, 'EUR', 'DEPOSIT', now(), 1, 'k', 'i')"
)


def named(name: str) -> sql.Identifier:
    """Quote a name with its schema."""
    return sql.Identifier(*name.split("."))


@pytest.fixture
def app(bank: Bank) -> Iterator[psycopg.Connection[Any]]:
    """A connection with the app's role, whose work is thrown away."""
    with psycopg.connect(bank.url, options=f"-c role={ROLE_APP}") as connection:
        yield connection
        connection.rollback()


class TestRoles:
    """What each database role may do."""

    @pytest.mark.parametrize(
        "statement",
        [
            "update ledger.movements set memo = 'x'",
            "delete from ledger.movements",
            "truncate ledger.movements cascade",
            "delete from ledger.holds",
            "delete from ledger.captures",
            "delete from ledger.accounts",
            "insert into ledger.accounts (account_id) values ('A00000001')",
            "update ledger.accounts set principal = 'eve'",
            "update ledger.accounts set tenant = 'eve'",
            "update ledger.accounts set limit_cents = null",
            "update ledger.accounts set currency = 'USD'",
            "update ledger.holds set amount_cents = 1",
            "update ledger.holds set expires_at = now()",
            "update ledger.captures set amount_cents = 1",
            "update ledger.captures set captured_at = now()",
            "insert into ledger.movements (movement_id) values ('M0000000001')",
            "insert into ledger.holds (hold_id) values ('H0000000001')",
            "select ledger.open_account('A00000009', 'bank', 'eve', 'CURRENT', 'EUR')",
            "select ledger.fund_account('A00000001', 'S00000001', 1)",
            "select ledger.close_account('A00000001')",
        ],
    )
    async def test_the_app_may_not(self, bank: Bank, app: psycopg.Connection[Any], statement: LiteralString) -> None:
        bank.account(5000)

        with pytest.raises(errors.InsufficientPrivilege):
            app.execute(statement)

    async def test_the_app_cannot_close_an_account_by_hand(self, bank: Bank, app: psycopg.Connection[Any]) -> None:
        account = bank.account(5000)

        with pytest.raises(errors.InsufficientPrivilege, match="only the owner closes accounts"):
            app.execute("update ledger.accounts set state = 'CLOSED' where account_id = %s", (account,))

    async def test_the_app_cannot_open_a_balance(self, bank: Bank, app: psycopg.Connection[Any]) -> None:
        account = bank.account(5000)

        with pytest.raises(errors.InsufficientPrivilege, match="only the owner opens balances"):
            app.execute(
                "insert into ledger.movements (tenant, debit_account, credit_account, amount_cents, currency,"
                " operation_type, reason_code) values ('bank', %s, %s, 1, 'EUR', 'OPENING', 'OPENING')",
                (CASH, account),
            )

    async def test_the_auditor_reads_everything_and_writes_nothing(self, bank: Bank) -> None:
        bank.account(5000)
        tables = bank.owner(
            "select table_schema || '.' || table_name as name, table_type from information_schema.tables"
            " where table_schema in ('ledger', 'backstay')"
        )
        assert {"ledger.movements", "backstay.audit_log"} <= {table["name"] for table in tables}

        with psycopg.connect(bank.url, options=f"-c role={ROLE_READONLY}", autocommit=True) as connection:
            for table in tables:
                connection.execute(sql.SQL("select count(*) from {}").format(named(table["name"])))
                if table["table_type"] == "BASE TABLE":
                    with pytest.raises(errors.InsufficientPrivilege):
                        connection.execute(sql.SQL("delete from {}").format(named(table["name"])))


class TestWrongHandlers:
    """What no handler can do."""

    @pytest.mark.parametrize(
        "movement",
        [
            ("bank", "A00000001", "A99999999", 1, "EUR", "TRANSFER"),  # absent
            ("bank", "A00000001", "A00000002", 1, "EUR", "TRANSFER"),  # closed
            ("bank", "A00000002", "A00000001", 1, "EUR", "TRANSFER"),  # closed
            ("bank", "A00000001", "A00000003", 1, "EUR", "TRANSFER"),  # in dollars
            ("bank", "A00000001", "A00000004", 1, "EUR", "TRANSFER"),  # of another tenant
            ("other-bank", "A00000001", "S00000001", 1, "EUR", "TRANSFER"),  # written for another tenant
            ("bank", "A00000001", "A00000001", 1, "EUR", "TRANSFER"),  # to itself
            ("bank", "A00000001", "S00000001", 0, "EUR", "TRANSFER"),
            ("bank", "A00000001", "S00000001", -1, "EUR", "TRANSFER"),
            ("bank", "A00000001", "S00000001", 1, "EUR", "CAPTURE"),  # without its capture
            ("bank", "A00000001", "S00000001", 1, "EUR", "REVERSAL"),  # of nothing
            ("bank", "A00000001", "S00000001", 1, "EUR", "PRESENT"),
        ],
    )
    async def test_a_wrong_movement_cannot_be_written(
        self, bank: Bank, app: psycopg.Connection[Any], movement: tuple[Any, ...]
    ) -> None:
        bank.account(5000)
        bank.account(5000, state="CLOSED")
        bank.account(currency="USD")
        bank.account(tenant="other-bank")
        app.execute(MOVEMENT, ("bank", "A00000001", "S00000001", 1, "EUR", "TRANSFER"))
        app.rollback()

        with pytest.raises(errors.CheckViolation):
            app.execute(MOVEMENT, movement)

    async def test_one_effect_moves_money_once(self, bank: Bank, app: psycopg.Connection[Any]) -> None:
        bank.account(5000)
        right = ("bank", "A00000001", "S00000001", 1, "EUR", "TRANSFER")
        app.execute(MOVEMENT, right)

        with pytest.raises(errors.UniqueViolation):
            app.execute(MOVEMENT, right)

    @pytest.mark.parametrize(
        "change",
        [
            "balance_cents = -1",
            "held_cents = 5001",
            "held_cents = -1",
            "balance_cents = 9007199254740992",
            "balance_cents = null",
            "held_cents = null",
            "state = 'GONE'",
        ],
    )
    async def test_a_customers_balance_is_never_less_than_what_is_held(
        self, bank: Bank, app: psycopg.Connection[Any], change: LiteralString
    ) -> None:
        bank.account(5000)

        with pytest.raises(errors.CheckViolation):
            app.execute(sql.SQL("update ledger.accounts set {} where account_id like 'A%'").format(sql.SQL(change)))

    async def test_a_system_account_stores_no_balance(self, app: psycopg.Connection[Any]) -> None:
        with pytest.raises(errors.CheckViolation):
            app.execute("update ledger.accounts set balance_cents = 0 where account_id = 'S00000001'")

    async def test_a_system_account_has_no_holds(self, app: psycopg.Connection[Any]) -> None:
        with pytest.raises(errors.CheckViolation):
            app.execute(HOLD, (CASH, 1))

    async def test_a_hold_is_resolved_once(self, bank: Bank, app: psycopg.Connection[Any]) -> None:
        hold = await bank.freeze(bank.account(5000))
        await bank.compensate(hold)

        with pytest.raises(errors.CheckViolation, match="resolved once"):
            app.execute("update ledger.holds set state = 'OPEN', closed_at = null")

    async def test_refunds_only_grow_and_never_beyond_the_capture(
        self, bank: Bank, app: psycopg.Connection[Any]
    ) -> None:
        capture = (await bank.captured(bank.account(5000))).output.capture_id
        await bank.refund(capture, 500)

        for refunded_cents in (499, 1001):
            with pytest.raises(errors.CheckViolation):
                app.execute("update ledger.captures set refunded_cents = %s", (refunded_cents,))
            app.rollback()

    async def test_a_closed_account_never_changes(self, bank: Bank, app: psycopg.Connection[Any]) -> None:
        bank.account(5000, state="CLOSED")

        for change in ("state = 'ACTIVE'", "balance_cents = balance_cents + 1"):
            with pytest.raises(errors.CheckViolation, match="never changes"):
                app.execute(sql.SQL("update ledger.accounts set {} where account_id like 'A%'").format(sql.SQL(change)))
            app.rollback()

    @pytest.mark.parametrize(
        "wrong",
        [
            ("A00000099", "bank", None, "CURRENT", "EUR"),
            ("A00000099", "bank", ANNA, "CASH", "EUR"),
            ("S00000099", "bank", ANNA, "CASH", "EUR"),
            ("S00000099", "bank", None, "SAVINGS", "EUR"),
            ("S00000099", "bank", None, "CASH", "EUR", 5),
            ("A0000009", "bank", ANNA, "CURRENT", "EUR"),
            ("A00000099", "bank", ANNA, "CURRENT", "JPY"),
        ],
    )
    async def test_an_account_is_a_customers_or_the_tenants(self, bank: Bank, wrong: tuple[Any, ...]) -> None:
        marks = ", ".join(["%s"] * len(wrong))

        with pytest.raises(errors.CheckViolation):
            bank.owner(f"select ledger.open_account({marks})", *wrong)


class TestClosing:
    """Closing accounts."""

    async def test_an_account_with_money_held_is_not_closed(self, bank: Bank) -> None:
        account = bank.account(5000)
        hold = await bank.freeze(account)

        with pytest.raises(errors.ObjectNotInPrerequisiteState, match="release it first"):
            bank.close(account)
        await bank.compensate(hold)
        bank.close(account)
        bank.close(account)

        assert bank.one("select state from ledger.accounts where account_id = %s", account) == {"state": "CLOSED"}

    async def test_there_must_be_one(self, bank: Bank) -> None:
        with pytest.raises(errors.NoDataFound):
            bank.close("A99999999")


class TestWords:
    """Words are the same in code and database."""

    def test_the_database_knows_exactly_the_words_of_the_tools(self, bank: Bank) -> None:
        def words(domain: str) -> set[str]:
            row = bank.one(
                "select pg_get_constraintdef(c.oid) as text from pg_constraint c where c.contypid = %s::regtype", domain
            )
            return set(re.findall(r"'([A-Z_]+)'", row["text"]))

        tools = (
            fields.DebitReason,
            fields.CreditReason,
            fields.TransferReason,
            fields.RefundReason,
            fields.ReversalReason,
            fields.AdjustmentReason,
        )
        movement_words = {word.value for tool in tools for word in tool}
        assert words("ledger.movement_reason") == movement_words | {"OPENING", fields.COMPENSATION_REASON}
        assert words("ledger.lock_reason") == {word.value for word in fields.LockReason}
        assert words("ledger.hold_reason") == {word.value for word in fields.HoldReason}
        assert words("ledger.operation_type") == {word.value for word in fields.OperationType}
        assert words("ledger.currency") == {word.value for word in fields.Currency}
        assert words("ledger.account_state") == {word.value for word in fields.AccountState}


class TestReading:
    """Reading an account's page."""

    async def test_the_page_of_an_account_is_read_from_its_indexes(self, bank: Bank) -> None:
        account, other = bank.account(10_000), bank.account(5000)
        bank.owner(
            "insert into ledger.movements (tenant, debit_account, credit_account, amount_cents, currency,"
            " operation_type, reason_code)"
            " select 'bank', 'S00000001', 'S00000002', 1, 'EUR', 'OPENING', 'OPENING' from generate_series(1, 20000)"
        )
        await bank.transfer(account, other, 7)
        await bank.transfer(other, account, 5)
        bank.owner("analyze ledger.movements")
        page = "select * from ledger.account_movements where account_id = %s order by movement_id desc limit 20"

        rows = bank.owner(page, account)
        plan = "\n".join(row["QUERY PLAN"] for row in bank.owner("explain " + page, CASH))

        assert [(row["change_cents"], row["other_account"]) for row in rows] == [
            (5, other),
            (-7, other),
            (10_000, CASH),
        ]
        assert "Seq Scan" not in plan, plan
        assert "Merge Append" in plan, plan
        assert bank.money(MERCHANT) == (20_000, 0)

"""`activities/invariants.sql`: it runs everywhere, and each invariant can be seen to fail."""

import re
import subprocess
from typing import Final, LiteralString

import psycopg
import pytest

from tests.support.ledger import BEN, Bank, invariants
from worker.check import INVARIANTS, parse
from worker.stack.binaries import postgres_directory
from worker.stack.layout import server_user_id

AN_ATTEMPT: Final[LiteralString] = """
insert into backstay.attempts (step_key, intent_key, step_id, tool, direction, remote_key, downstream, state,
    argument_digest, arguments, epoch, in_flight_until, key_valid_until, patience_until)
select STEP_KEY, intent_key, step_id, tool, direction, transaction_id::text, 'bank', 'STATE', '', '{}', 1, now(), now(),
    now()
from backstay.effects where tool = 'transfer_customer_funds'
"""
LOCKS: Final[LiteralString] = """
with open_again as (
    update backstay.intents set phase = 'ADMITTED', final_at = null returning intent_key, epoch
)
insert into backstay.locks (resource, intent_key, mode, is_held, epoch, ticket, step_ids)
select 'account:A00000001', intent_key, case row_number() over () when 1 then 'EXCLUSIVE' else 'MODE' end, true, epoch,
    row_number() over (), '{}'
from open_again
"""


def test_psql_runs_the_file_and_says_nothing_is_wrong(bank: Bank) -> None:
    user = server_user_id()
    ran = subprocess.run(
        [
            str(postgres_directory(user) / "psql"),
            *("-X", "-a", "-v", "ON_ERROR_STOP=1", "-c", "set role backstay_readonly", "-f", str(INVARIANTS)),
            bank.url,
        ],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines().count("(0 rows)") == len(list(invariants()))


def test_every_invariant_has_a_number_a_name_and_two_columns(bank: Bank) -> None:
    names = [name for name, _ in invariants()]

    assert all(re.fullmatch(r"[1-6][a-z] [a-z_]+", name) for name in names)
    assert names == sorted(set(names))
    with psycopg.connect(bank.url) as connection:
        for name, query in invariants():
            cursor = connection.execute(query.encode())
            assert [column.name for column in cursor.description or ()] == ["subject", "detail"], name
    _, not_yet = parse(INVARIANTS.read_text(encoding="utf-8"))
    assert [line[0] for line in not_yet] == ["5", "6", "7"]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("1a", "update ledger.accounts set balance_cents = balance_cents + 1 where account_id = 'A00000001'"),
        (
            "1b",
            (
                "update ledger.accounts set balance_cents = balance_cents"
                " + case account_id when 'A00000001' then 1 else -1 end"
                " where account_id in ('A00000001', 'A00000002')"
            ),
        ),
        (
            "1c",
            (
                "alter table ledger.accounts drop constraint accounts_available;"
                "update ledger.accounts set held_cents = balance_cents + 1 where account_id = 'A00000001'"
            ),
        ),
        ("1d", "update ledger.accounts set held_cents = held_cents + 1 where account_id = 'A00000001'"),
        ("1e", "update ledger.movements set currency = 'USD' where movement_id = 'M0000000001'"),
        ("1e", "update ledger.movements set tenant = 'eve' where movement_id = 'M0000000001'"),
        (
            "1f",
            (
                "update ledger.accounts set state = 'CLOSED', closed_at = now() - interval '1 hour'"
                " where account_id = 'A00000002'"
            ),
        ),
        ("1g", "update ledger.movements set amount_cents = 1 where operation_type = 'REVERSAL'"),
        ("2a", "update ledger.holds set captured_cents = captured_cents - 1 where state = 'CAPTURED'"),
        ("2a", "delete from ledger.captures"),
        ("2b", "update ledger.captures set refunded_cents = refunded_cents + 1"),
        ("2b", "update ledger.movements set amount_cents = 1 where operation_type = 'CAPTURE'"),
        (
            "2c",
            (
                "update backstay.intents set phase = 'COMPENSATED' where intent_id ="
                " (select intent_id from ledger.holds where state = 'OPEN')"
            ),
        ),
        (
            "2c",
            (
                "update backstay.effects set state = 'TOMBSTONE' where transaction_id ="
                " (select transaction_id from ledger.holds where state = 'OPEN')"
            ),
        ),
        (
            "2c",
            (
                "update backstay.intents set plan ="
                ' \'{"steps": [{"arguments": {"hold_id": {"$from": "step.hold_id"}}}]}\''
                " where intent_id = (select intent_id from ledger.holds where state = 'OPEN')"
            ),
        ),
        ("2d", "update ledger.holds set expires_at = now() - interval '2 hours' where state = 'OPEN'"),
        ("2c", "update ledger.holds set payee = 'S00000002' where state = 'OPEN'"),
        ("2e", "update ledger.captures set credit_account = 'S00000001'"),
        ("2e", "update ledger.holds set payee = 'S00000002' where payee is null and state = 'CAPTURED'"),
        ("3a", "delete from backstay.effects where tool = 'transfer_customer_funds'"),
        ("3b", "update backstay.intents set plan = '{\"steps\": []}' where phase = 'COMMITTED'"),
        ("3c", "update backstay.intents set phase = 'NOT_APPLIED' where phase = 'COMMITTED'"),
        ("3c", "update backstay.intents set phase = 'NOT_APPLIED' where phase = 'COMPENSATED'"),
        (
            "3d",
            (
                "update backstay.intents set phase = 'ADMITTED', final_at = null,"
                " deadline_at = now() - interval '2 hours'"
            ),
        ),
        ("3e", "update backstay.effects set response = '{\"undone\": false}' where direction = 'compensate'"),
        ("3e", "update backstay.effects set state = 'LANDED' where state = 'COMPENSATED'"),
        ("3f", "update ledger.movements set transaction_id = -1 where operation_type = 'TRANSFER'"),
        ("3f", "update backstay.effects set tool = 'freeze_account_funds' where tool = 'transfer_customer_funds'"),
        ("3f", "update ledger.movements set intent_id = 'other' where operation_type = 'TRANSFER'"),
        ("3g", "delete from ledger.movements where operation_type = 'TRANSFER'"),
        ("3g", "delete from ledger.holds where state = 'OPEN'"),
        ("3g", "delete from ledger.captures"),
        ("3h", "update ledger.holds set transaction_id = -1 where state = 'OPEN'"),
        ("3h", "update ledger.captures set transaction_id = -transaction_id"),
        ("3h", "update ledger.locks set transaction_id = -1"),
        ("3g", "delete from ledger.locks"),
        (
            "3i",
            (
                "update ledger.accounts set state = 'FROZEN', locked_by = (select transaction_id from"
                " backstay.effects where tool = 'lock_customer_account' and direction = 'execute')"
                " where account_id = 'A00000002'"
            ),
        ),
        ("3i", "update ledger.holds set state = 'OPEN', closed_at = null where state = 'RELEASED'"),
        ("3i", "update ledger.movements set reverses = 'M0000000001' where operation_type = 'REVERSAL'"),
        ("3j", AN_ATTEMPT.replace("STEP_KEY", "'nowhere'").replace("STATE", "LANDED")),
        ("3j", AN_ATTEMPT.replace("STEP_KEY", "'nowhere'").replace("STATE", "FENCED")),
        ("3j", AN_ATTEMPT.replace("STEP_KEY", "'nowhere'").replace("STATE", "SENT")),
        ("3j", AN_ATTEMPT.replace("STEP_KEY", "step_key").replace("STATE", "NOT_LANDED")),
        ("3k", """update backstay.intents set plan = jsonb_set(plan::jsonb, '{steps,0,dispatch}', '"REMOTE"')::text"""),
        ("3l", """update backstay.intents set report = '{"outcome": "NOT_APPLIED"}' where phase = 'COMMITTED'"""),
        ("3m", LOCKS.replace("MODE", "EXCLUSIVE")),
        ("3m", LOCKS.replace("MODE", "SHARED")),
        ("3n", "delete from backstay.effects where step_id = 'step' and tool = 'reserve_customer_payment'"),
        ("3n", "update backstay.effects set state = 'COMPENSATED' where step_id = 'step' and state = 'LANDED'"),
        ("3o", "update backstay.effects set state = 'COMPENSATED' where step_id = 'step' and state = 'LANDED'"),
        ("3p", "update backstay.effects set step_id = step_id || '.fallback' where tool = 'transfer_customer_funds'"),
        ("4a", "update backstay.effects set state = 'LANDED' where state = 'COMPENSATED'"),
        ("4a", "delete from backstay.effects where state = 'COMPENSATED'"),
        ("4b", "update backstay.effects set state = 'TOMBSTONE' where tool = 'transfer_customer_funds'"),
        ("5a", "update backstay.intents set plan = replace(plan, '\"NONE\"', '\"ONE\"')"),
        (
            "5b",
            (
                "insert into backstay.approval_requests (intent_key, step_id, duty, plan_digest, reason,"
                " expires_at) select intent_key, 'step', 'ONE', 'digest', '', now() from backstay.intents"
            ),
        ),
        (
            "5c",
            (
                "insert into backstay.approval_consumptions (step_key, intent_key, step_id, decision_id)"
                " values ('k', 'k', 's', 'd')"
            ),
        ),
        ("5d", "update backstay.intents set proof = 'another'"),
        ("5d", "update backstay.intents set proof_digest = repeat('0', 64)"),
        (
            "5e",
            """update backstay.intents set plan = jsonb_set(plan::jsonb, '{steps,0,late}', '["amount_cents"]')::text""",
        ),
        ("6a", "delete from backstay.audit_log where audit_id = 1"),
        ("6a", "update backstay.audit_log set at = at + interval '1 s' where audit_id = 1"),
        ("6b", "update backstay.audit_log set transaction_id = -1 where audit_id = 1"),
        ("6c", "update backstay.audit_log set kind = 'refusal' where audit_id = 1"),
        ("6c", "update backstay.audit_log set arguments = null where audit_id = 1"),
        ("6d", "update backstay.audit_log set arguments = '{}' where audit_id = 1"),
        (
            "6d",
            (
                "delete from backstay.audit_log where intent_key in (select intent_key from backstay.effects where"
                " state = 'COMPENSATED') and tool is not null and audit_id in (select min(audit_id) from"
                " backstay.audit_log group by intent_key)"
            ),
        ),
        ("6d", "update backstay.audit_log set previous_digest = null where previous_digest is not null"),
        ("6e", "grant insert on backstay.decisions to backstay_app"),
        ("6e", "grant update (memo) on ledger.movements to backstay_app"),
        ("6e", "grant delete on backstay.audit_log to backstay_app"),
        ("6e", "grant update on backstay.locks to backstay_app"),
        ("6e", "grant insert on ledger.holds to backstay_readonly"),
        ("6f", "update backstay.effects set response = replace(response, '13', '31') where direction = 'execute'"),
        ("6f", "update backstay.effects set arguments = replace(arguments, '13', '31') where direction = 'execute'"),
    ],
)
async def test_damage_is_seen(bank: Bank, name: str, damage: LiteralString) -> None:
    await live(bank)
    queries = {found.split()[0]: query for found, query in invariants()}

    with psycopg.connect(bank.url) as connection:
        before = connection.execute(queries[name].encode()).fetchall()
        connection.execute("set session_replication_role = replica")
        connection.execute(damage)
        after = connection.execute(queries[name].encode()).fetchall()
        connection.rollback()

    assert before == []
    assert after != []


def test_damage_is_tried_on_every_invariant() -> None:
    marks = test_damage_is_seen.pytestmark  # type: ignore[attr-defined]
    tried = {name for mark in marks if mark.name == "parametrize" for name, _ in mark.args[1]}

    assert tried == {name.split()[0] for name, _ in invariants()}


async def live(bank: Bank) -> None:
    """Let a little of everything happen, so that there is something to damage."""
    anna, ben = bank.account(5000), bank.account(5000, principal=BEN)
    await bank.compensate(await bank.freeze(anna, 11))
    await bank.compensate(await bank.credit(anna, 12))
    await bank.freeze(anna, 13)
    await bank.transfer(anna, ben, 14)
    capture = (await bank.captured(anna, 15)).output.capture_id
    await bank.refund(capture, 5)
    await bank.compensate(await bank.lock(ben, principal=BEN))
    await bank.confirm(await bank.reserve(anna, 16))
    bank.settle()

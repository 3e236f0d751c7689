"""The barrier on a real PostgreSQL: an effect lands once or never, whoever comes late, twice or at the same time."""

# A variant without the share lock, which is private, shows that the races can fail.
# pyright: reportPrivateUsage=false

import asyncio
import time
from dataclasses import replace
from typing import Final, LiteralString

import psycopg
import pytest
from psycopg import errors

from activities import barrier
from activities.barrier import execute_step
from activities.database import Database, Transaction
from contracts.envelope import Cause
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.risk import Policy
from contracts.saga import ParkReason
from tests.support.desk import Desk, at_desk, refused, same_bytes
from tests.support.samples import look, note

RACES: Final = 200


# --- repeats -----------------------------------------------------------------------------------------------------


@pytest.mark.situation(19)
async def test_a_repeat_gets_the_stored_answer_byte_for_byte_and_does_nothing(desk: Desk) -> None:
    intent = await desk.intent(note("a", text="  caf\u00e9 \u201cx\u201d \U0001f600\r\n", memo=""))

    first = await intent.execute("a")
    again = await intent.execute("a")

    assert same_bytes(first, again)
    assert (desk.behaviour.calls["a"], desk.count("samples.notes")) == (1, 1)
    assert intent.noted() == ["admitted", "effect"]


@pytest.mark.situation(5)
async def test_the_same_key_with_other_arguments_is_refused_loudly(desk: Desk) -> None:
    bound = note("b", text={"$from": "a.text"})
    intent = await desk.intent(note("a"), bound)
    await intent.execute("a")
    await intent.execute("b", text="one")

    assert await refused(intent.execute("b", text="two")) is Reason.KEY_REUSED
    assert desk.count("samples.notes", "text = 'two'") == 0


async def test_a_step_that_is_not_what_was_admitted_does_not_land(desk: Desk) -> None:
    intent = await desk.intent(note("a"))

    assert await refused(intent.execute("a", text="other")) is Reason.MISMATCH
    assert desk.count("samples.notes") == 0


async def test_a_reading_is_remembered_whatever_the_world_says_later(desk: Desk) -> None:
    intent = await desk.intent(note("a"), look("r"), note("b"))
    await intent.execute("a")

    first = await intent.execute("r")
    await intent.execute("b")
    again = await intent.execute("r")

    assert first.output == {"text": "1 notes"}
    assert same_bytes(first, again)
    assert intent.effects() == {"a/execute": "LANDED", "b/execute": "LANDED"}


@pytest.mark.situation(4)
async def test_two_executions_of_one_key_at_once_are_one_effect_and_both_get_its_answer(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    gate = desk.behaviour.hold("a", "after")
    first = asyncio.create_task(intent.execute("a"))
    await gate.arrived()
    second = asyncio.create_task(intent.execute("a"))
    await waits_for_a_lock(desk)

    gate.open()

    assert same_bytes(*await asyncio.gather(first, second))
    assert (desk.behaviour.calls["a"], desk.count("samples.notes")) == (1, 1)


async def test_when_the_first_of_two_executions_fails_the_second_lands(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    gate = desk.behaviour.hold("a", "after")
    desk.behaviour.fail("a", ValueError("a bug"), moment="after")
    first = asyncio.create_task(intent.execute("a"))
    await gate.arrived()
    second = asyncio.create_task(intent.execute("a"))
    await waits_for_a_lock(desk)

    gate.open()

    with pytest.raises(ValueError, match="a bug"):
        await first
    assert (await second).transaction_id is not None
    assert desk.count("samples.notes") == 1


async def waits_for_a_lock(desk: Desk) -> None:
    async with asyncio.timeout(10):
        while not desk.count("pg_stat_activity", "wait_event_type = 'Lock'"):  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)


# --- who may -----------------------------------------------------------------------------------------------------


async def test_a_stale_epoch_and_a_stale_run_land_nothing(desk: Desk) -> None:
    intent = await desk.intent(note("a"))

    assert await refused(intent.seen_by(epoch=2).execute("a")) is Reason.RUN_STALE
    assert await refused(intent.seen_by(run="run-2").execute("a")) is Reason.RUN_STALE
    assert desk.count("samples.notes") == 0


async def test_a_reading_by_a_stale_run_is_refused(desk: Desk) -> None:
    intent = await desk.intent(look("r"))

    assert await refused(intent.seen_by(run="run-2").execute("r")) is Reason.RUN_STALE


async def test_nothing_lands_or_is_read_while_the_intent_is_parked(desk: Desk) -> None:
    intent = await desk.intent(note("a"), look("r"))
    await intent.park(ParkReason.MISMATCH)

    assert await refused(intent.execute("a")) is Reason.INTENT_PARKED
    assert await refused(intent.execute("r")) is Reason.INTENT_PARKED


@pytest.mark.parametrize(
    ("scope", "subject"), [("all", ""), ("tenant", "bank"), ("agent", "agent"), ("tool", "write_sample_note")]
)
async def test_a_kill_switch_stops_new_effects_and_not_the_stored_answer(desk: Desk, scope: str, subject: str) -> None:
    intent = await desk.intent(note("a"), note("b"))
    landed = await intent.execute("a")
    desk.rows("insert into backstay.kill_switches values (%s, %s, 'drill', 'tester')", scope, subject)

    assert await refused(intent.execute("b")) is Reason.KILL_SWITCH_ON
    assert same_bytes(await intent.execute("a"), landed)


async def test_a_kill_switch_does_not_stop_a_compensation(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    await intent.execute("a")
    await intent.close()
    desk.rows("insert into backstay.kill_switches values ('all', '', 'drill', 'tester')")

    assert (await intent.compensate("a")).undone


async def test_nothing_lands_after_the_deadline_but_what_landed_is_told(desk: Desk) -> None:
    intent = await desk.intent(note("a"), note("b"))
    landed = await intent.execute("a")
    desk.rows("update backstay.intents set deadline_at = now()")

    assert await refused(intent.execute("b")) is Reason.DEADLINE_EXCEEDED
    assert same_bytes(await intent.execute("a"), landed)


async def test_an_intent_that_nobody_admitted_has_no_steps(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    desk.rows("truncate backstay.intents cascade")

    assert await refused(intent.execute("a")) is Reason.INTENT_NOT_FOUND


# --- approvals ---------------------------------------------------------------------------------------------------


async def test_an_approval_is_spent_in_the_effects_own_transaction_and_once(desk: Desk) -> None:
    intent = await desk.intent(note("a", "guard"))
    await intent.decide()

    await intent.execute("a")
    await intent.execute("a")

    spent = desk.one("select step_key, decision_id from backstay.approval_consumptions")
    assert spent == {"step_key": f"{intent.plan.intent_key}/a/execute", "decision_id": "d-approve"}


async def test_a_step_that_fails_after_spending_has_not_spent(desk: Desk) -> None:
    intent = await desk.intent(note("a", "guard"))
    await intent.decide()
    desk.behaviour.fail("a", ValueError("a bug"), moment="after")

    with pytest.raises(ValueError, match="a bug"):
        await intent.execute("a")

    assert desk.count("backstay.approval_consumptions") == 0
    assert (await intent.execute("a")).transaction_id is not None


@pytest.mark.parametrize("decided", ["nobody", "denied", "approved, then denied", "too long ago"])
async def test_without_a_valid_approval_a_gated_step_does_not_land(desk: Desk, decided: str) -> None:
    intent = await desk.intent(note("a", "guard"))
    if "approved" in decided or decided == "too long ago":
        await intent.decide()
    if "denied" in decided:
        await intent.decide("deny")
    if decided == "too long ago":
        desk.rows("update backstay.decisions set decided_at = now() - interval '1 day'")

    assert await refused(intent.execute("a")) is Reason.APPROVAL_MISSING
    assert desk.count("samples.notes") == 0


async def test_an_approval_of_another_plan_does_not_count(desk: Desk) -> None:
    intent = await desk.intent(note("a", "guard"))
    await intent.decide()
    desk.rows("update backstay.decisions set plan_digest = repeat('0', 64)")

    assert await refused(intent.execute("a")) is Reason.APPROVAL_MISSING


async def test_an_approval_is_valid_for_as_long_as_the_policy_says(desk_url: str) -> None:
    async with at_desk(desk_url, Policy(approval_valid_seconds=100_000)) as desk:
        intent = await desk.intent(note("a", "guard"))
        await intent.decide()
        desk.rows("update backstay.decisions set decided_at = now() - interval '1 day'")

        assert (await intent.execute("a")).transaction_id is not None


# --- nothing left behind -------------------------------------------------------------------------------------------


async def test_a_refusal_leaves_its_audit_row_and_nothing_else(desk: Desk) -> None:
    intent = await desk.intent(note("a", memo="private"))
    desk.behaviour.refuse("a", Reason.FUNDS_INSUFFICIENT)

    assert await refused(intent.execute("a")) is Reason.FUNDS_INSUFFICIENT
    assert (desk.count("samples.notes"), intent.effects()) == (0, {})
    assert intent.noted() == ["admitted", "refusal"]
    row = desk.one("select * from backstay.audit_log where kind = 'refusal'")
    assert (row["step_id"], row["tool"], row["principal"]) == ("a", "write_sample_note@1", "customer")
    assert "FUNDS_INSUFFICIENT" in row["result"]


async def test_a_refused_step_may_land_later_under_the_same_key(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    desk.behaviour.refuse("a")
    await refused(intent.execute("a"))
    desk.behaviour.allow("a")

    assert (await intent.execute("a")).transaction_id is not None


async def test_a_handler_that_raises_after_its_write_leaves_nothing(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    desk.behaviour.fail("a", ValueError("a bug"), moment="after")

    with pytest.raises(ValueError, match="a bug"):
        await intent.execute("a")

    assert (desk.count("samples.notes"), intent.effects(), intent.noted()) == (0, {}, ["admitted"])


async def test_a_tool_that_only_reads_cannot_write(desk: Desk) -> None:
    intent = await desk.intent(look("r"))

    async def write(transaction: Transaction, _arguments: object, _context: object) -> None:
        await transaction.one("update samples.notes set text = 'x' returning text")

    with pytest.raises(errors.ReadOnlySqlTransaction):
        await execute_step(desk.database, replace(intent.tool("r"), execute=write), intent.call("r"))


# --- compensation --------------------------------------------------------------------------------------------------


async def test_a_landed_step_is_undone_once_and_a_repeat_gets_the_stored_answer(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    await intent.execute("a")
    await intent.close()

    first, again = await intent.compensate("a"), await intent.compensate("a")

    assert first == again
    assert first.undone
    assert desk.behaviour.calls["undo:a"] == 1
    assert intent.effects() == {"a/execute": "COMPENSATED", "a/compensate/1": "LANDED"}


async def test_two_compensations_at_once_are_one(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    await intent.execute("a")
    await intent.close()

    answers = await asyncio.gather(*(intent.compensate("a") for _ in range(5)))

    assert len({answer.model_dump_json() for answer in answers}) == 1
    assert desk.behaviour.calls["undo:a"] == 1


@pytest.mark.situation(2, "F41")
async def test_a_compensation_before_its_step_leaves_a_tombstone_and_touches_nothing(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    await intent.close()

    done = await intent.compensate("a")

    assert not done.undone
    assert intent.effects() == {"a/execute": "TOMBSTONE", "a/compensate/1": "LANDED"}
    assert (desk.behaviour.calls["undo:a"], desk.count("samples.notes")) == (0, 0)


@pytest.mark.situation(3, "F40")
async def test_a_late_step_meets_the_tombstone_and_never_lands(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    await intent.close()
    await intent.compensate("a")
    desk.rows("update backstay.intents set phase = 'ADMITTED'")  # only the tombstone stands in its way

    assert await refused(intent.execute("a")) is Reason.SUPERSEDED
    assert desk.count("samples.notes") == 0


async def test_a_late_repeat_of_a_compensated_step_never_gets_the_stored_success(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    await intent.execute("a")
    await intent.close()
    await intent.compensate("a")

    assert await refused(intent.execute("a")) is Reason.SUPERSEDED
    desk.rows("update backstay.intents set phase = 'ADMITTED'")
    assert await refused(intent.execute("a")) is Reason.SUPERSEDED


async def test_nothing_is_compensated_before_the_intent_closes(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    await intent.execute("a")

    assert await refused(intent.compensate("a")) is Reason.SUPERSEDED
    assert intent.effects() == {"a/execute": "LANDED"}


async def test_a_refused_compensation_leaves_the_effect_and_its_audit_row(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    await intent.execute("a")
    await intent.close()
    desk.behaviour.refuse("undo:a")

    assert await refused(intent.compensate("a")) is Reason.WRONG_STATE
    assert intent.effects() == {"a/execute": "LANDED"}
    assert intent.noted()[-1] == "compensation_refused"


async def test_a_stale_run_compensates_nothing(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    await intent.execute("a")
    await intent.close()

    assert await refused(intent.seen_by(epoch=2).compensate("a")) is Reason.RUN_STALE
    assert intent.effects() == {"a/execute": "LANDED"}


async def test_what_a_compensation_could_not_restore_is_stored(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    await intent.execute("a")
    await intent.close()
    desk.behaviour.leave("undo:a", "the ink stays")

    assert (await intent.compensate("a")).residue == "the ink stays"
    assert desk.one("select residue from backstay.effects where direction = 'execute'")["residue"] == "the ink stays"


# --- a step against the close --------------------------------------------------------------------------------------


async def unseen_after_races(desk: Desk, races: int) -> tuple[int, int]:
    """Let a step and a close run at once, many times: how many landed unseen by the close, how many landed at all."""
    probe, started = await desk.intent(note("probe")), time.monotonic()
    await probe.execute("probe")
    step_seconds = time.monotonic() - started

    async def race(number: int) -> tuple[bool, bool]:
        intent = await desk.intent(note(f"a{number}"))

        async def step() -> bool:
            try:
                await intent.execute(f"a{number}")
            except SagaError:
                return False
            return True

        async def close() -> bool:
            await asyncio.sleep(step_seconds * (number % 10) / 10)  # spread over the time that a step takes
            return bool((await intent.close()).effects)

        landed, seen = await asyncio.gather(step(), close())
        return landed and not seen, landed

    outcomes = [
        outcome
        for first in range(0, races, 10)
        for outcome in await asyncio.gather(*(race(number) for number in range(first, first + 10)))
    ]
    return sum(unseen for unseen, _ in outcomes), sum(landed for _, landed in outcomes)


async def test_no_step_lands_unseen_by_the_close(desk: Desk) -> None:
    unseen, landed = await unseen_after_races(desk, RACES)

    assert unseen == 0
    assert 0 < landed < RACES  # each of them won at times, or the races prove nothing


async def test_without_the_share_lock_steps_land_unseen(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(barrier, "_LAND", barrier._LAND.replace("for share of i", ""))

    unseen, _ = await unseen_after_races(desk, RACES)

    assert unseen > 0


async def test_a_close_waits_for_the_step_that_is_landing_and_lists_it(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    gate = desk.behaviour.hold("a", "after")
    step = asyncio.create_task(intent.execute("a"))
    await gate.arrived()
    closing = asyncio.create_task(intent.close())
    await waits_for_a_lock(desk)

    gate.open()

    assert [effect.transaction_id for effect in (await closing).effects] == [(await step).transaction_id]


# --- the database's own hiccups ------------------------------------------------------------------------------------


async def test_a_lock_that_is_not_had_in_time_is_in_progress(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    with psycopg.connect(desk.database_url) as other:
        other.execute("select 1 from backstay.intents for update")

        assert await refused(intent.execute("a")) is Reason.IN_PROGRESS


@pytest.mark.parametrize("error", [errors.DeadlockDetected, errors.SerializationFailure])
async def test_a_deadlock_runs_the_whole_transaction_again(desk: Desk, error: type[Exception]) -> None:
    intent = await desk.intent(note("a"))
    desk.behaviour.fail("a", error("by the test"), error("by the test"), moment="after")

    await intent.execute("a")

    assert (desk.behaviour.calls["a"], desk.count("samples.notes")) == (3, 1)


async def test_a_deadlock_that_does_not_end_is_given_up(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    desk.behaviour.fail("a", *[errors.DeadlockDetected("by the test") for _ in range(3)])

    assert await refused(intent.execute("a")) is Reason.DEPENDENCY_DOWN
    assert intent.effects() == {}


async def test_a_real_deadlock_ends_with_both_done(desk: Desk) -> None:
    """Two transactions that update two rows in opposite order; PostgreSQL ends one, which runs again."""
    desk.rows("create table samples.two (n int primary key, v int); insert into samples.two values (1, 0), (2, 0)")
    desk.rows("grant select, update on samples.two to backstay_app")
    both = asyncio.Barrier(2)
    attempts: list[int] = []

    async def work(transaction: Transaction, rows: tuple[int, int]) -> None:
        again = rows[0] in attempts
        attempts.append(rows[0])
        await transaction.one("update samples.two set v = v + 1 where n = %s returning v", (rows[0],))
        if not again:
            await both.wait()
        await transaction.one("update samples.two set v = v + 1 where n = %s returning v", (rows[1],))

    await asyncio.gather(
        desk.database.run(lambda transaction: work(transaction, (1, 2))),
        desk.database.run(lambda transaction: work(transaction, (2, 1))),
    )

    assert desk.rows("select v from samples.two") == [{"v": 2}, {"v": 2}]
    assert len(attempts) == 3


async def test_a_lost_connection_runs_the_whole_transaction_again(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    gate = desk.behaviour.hold("a", "after")
    running = asyncio.create_task(intent.execute("a"))
    await gate.arrived()

    desk.rows(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where application_name = 'backstay' and state = 'idle in transaction'"
    )
    gate.open()

    assert (await running).transaction_id is not None
    assert desk.count("samples.notes") == 1


# --- audit ---------------------------------------------------------------------------------------------------------

CHAIN: Final = """
select audit_id from (
    select a.audit_id, a.digest = backstay.audit_digest(a) as whole, a.previous_digest is not distinct from
        lag(a.digest) over (partition by a.intent_key, a.step_id order by a.audit_id) as linked
    from backstay.audit_log a where intent_key is not null
) rows where not (whole and linked)
"""


async def an_undone_intent(desk: Desk) -> None:
    intent = await desk.intent(note("a"), note("b"))
    await intent.execute("a")
    desk.behaviour.refuse("b")
    await refused(intent.execute("b"))
    await refused(intent.execute("b"))
    await intent.close(Cause.REFUSED)
    await intent.compensate("a")
    await intent.settle()


async def test_each_audit_row_binds_its_content_and_the_row_before_it(desk: Desk) -> None:
    await an_undone_intent(desk)

    assert desk.rows(CHAIN) == []
    assert desk.count("backstay.audit_log") == 7


async def test_a_tampered_or_missing_audit_row_is_found(desk: Desk) -> None:
    await an_undone_intent(desk)
    columns = ("kind", "tenant", "tool", "agent", "principal", "actor", "arguments", "decisions", "result", "step_id")
    tampering = [f"update backstay.audit_log set {column} = 'forged' where audit_id = 2" for column in columns]  # noqa: S608
    tampering += [
        "update backstay.audit_log set at = at + interval '1 microsecond' where audit_id = 2",
        "update backstay.audit_log set transaction_id = 99 where audit_id = 2",
        "delete from backstay.audit_log where kind = 'closed'",
        "update backstay.audit_log set digest = repeat('0', 64) where audit_id = 2",
    ]

    found: dict[str, bool] = {}
    with psycopg.connect(desk.database_url) as connection:
        for statement in tampering:
            connection.execute(statement.encode())
            found[statement] = connection.execute(CHAIN.encode()).fetchall() != []
            connection.rollback()

    assert found == dict.fromkeys(tampering, True)


async def test_the_role_of_the_workers_cannot_rewrite_what_must_stay(desk: Desk) -> None:
    await an_undone_intent(desk)
    forbidden: tuple[LiteralString, ...] = (
        "update backstay.audit_log set result = '{}'",
        "delete from backstay.audit_log",
        "insert into backstay.audit_log (kind, tenant, result, digest) values ('x', 'x', '{}', 'x')",
        "truncate backstay.audit_log",
        "delete from backstay.effects",
        "delete from backstay.intents",
        "update backstay.effects set arguments = '{}'",
        "update backstay.intents set plan = '{}'",
        "update backstay.decisions set verdict = 'approve'",
        "delete from backstay.decisions",
        "delete from backstay.approval_consumptions",
        "update ledger.movements set amount_cents = 1",
        "delete from ledger.movements",
        "update backstay.readings set response = '{}'",
    )

    async with Database(desk.database_url) as database:
        for statement in forbidden:
            with pytest.raises(errors.InsufficientPrivilege):
                await database.one(statement)


async def test_an_audit_row_hides_what_the_contract_calls_sensitive(desk: Desk) -> None:
    intent = await desk.intent(
        {
            "step_id": "freeze",
            "tool": "freeze_account_funds",
            "arguments": {
                "account_id": "A00000001",
                "amount_cents": 500,
                "currency": "EUR",
                "reason_code": "PURCHASE",
                "memo": "very private",
            },
        }
    )

    await execute_step(desk.database, intent.tool("freeze"), intent.call("freeze"))

    assert desk.count("backstay.audit_log", "arguments like '%%very private%%' or result like '%%very private%%'") == 0
    assert desk.count("ledger.holds", "memo = 'very private'") == 1


async def test_refusals_of_one_step_at_the_same_time_are_one_chain(desk: Desk) -> None:
    intent = await desk.intent(note("a"))
    desk.behaviour.refuse("a")

    for _ in range(5):
        await asyncio.gather(*(refused(intent.execute("a")) for _ in range(8)))

    assert desk.count("backstay.audit_log", "kind = 'refusal'") == 40
    assert desk.rows(CHAIN) == []

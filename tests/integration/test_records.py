"""Records and notices on the real servers: nothing more goes than was said, and only a purge is for ever."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from psycopg.errors import CheckViolation, InsufficientPrivilege
from temporalio.client import Client

from activities.locks import unlock
from activities.packs.notices import PACK as NOTICES
from activities.packs.records import PACK as RECORDS
from contracts.base import JsonObject
from contracts.envelope import Envelope
from contracts.reasons import Reason
from tests.support.opened import opened
from tests.support.sagas import BOUND_SECONDS, Sagas, approval, outcome, request, serve, states
from tests.support.samples import note

LETTERS = 5
FILE, FOREIGN_FILE, HELD_FILE = "F00000001", "F00000002", "F00000003"
CONTACT = "N00000001"
BOUND = {"$from": "delete.deletion_id"}
_FILES = """
insert into records.files (file_id, tenant, principal, state) values
    ('F00000001', 'bank', 'customer', 'OPEN'), ('F00000002', 'bank', 'somebody-else', 'OPEN'),
    ('F00000003', 'bank', 'customer', 'LEGAL_HOLD');
insert into records.records (file_id, category, content)
    select file_id, 'CORRESPONDENCE', 'letter ' || n from records.files, generate_series(1, 5) n;
insert into records.records (file_id, category, content) values ('F00000001', 'DOCUMENT', 'passport');
insert into notices.contacts (contact_id, tenant, principal, channel, address)
    values ('N00000001', 'bank', 'customer', 'EMAIL', 'customer@example.org')
"""


@pytest.fixture
async def sagas(temporal_client: Client, database_url: str, task_queue: str) -> AsyncGenerator[Sagas]:
    async with serve(temporal_client, database_url, task_queue, packs=(RECORDS, NOTICES)) as served:
        for statement in _FILES.split(";"):
            served.rows(statement)
        yield served


def delete(step_id: str = "delete", *, file_id: str = FILE, records_max: int = LETTERS, **more: object) -> JsonObject:
    arguments = {"file_id": file_id, "category": "CORRESPONDENCE", "records_max": records_max}
    reason = {"reason_code": "CUSTOMER_REQUEST"}
    return {"step_id": step_id, "tool": "delete_customer_records", "arguments": {**arguments, **reason, **more}}


def restore(deletion: object = BOUND) -> JsonObject:
    arguments = {"deletion_id": deletion, "reason_code": "DELETED_BY_MISTAKE"}
    return {"step_id": "restore", "tool": "restore_customer_records", "arguments": arguments}


def purge(deletion: object = BOUND, *, records_max: int = LETTERS) -> JsonObject:
    arguments = {"deletion_id": deletion, "records_max": records_max, "reason_code": "CUSTOMER_REQUEST"}
    return {"step_id": "purge", "tool": "purge_deleted_records", "arguments": arguments}


def notice() -> JsonObject:
    arguments = {"contact_id": CONTACT, "template": "RECORDS_DELETED", "reference": "CASE-4711"}
    return {"step_id": "tell", "tool": "send_customer_notice", "arguments": arguments}


def living(sagas: Sagas, file_id: str = FILE) -> int:
    """How many records stand, marked ones not counted."""
    query = "select count(*) as n from records.records where file_id = %s and deletion_id is null"
    return int(sagas.one(query, file_id)["n"])


def kept(sagas: Sagas, file_id: str = FILE) -> int:
    """How many records exist, marked or not."""
    return int(sagas.one("select count(*) as n from records.records where file_id = %s", file_id)["n"])


def refusal(envelope: Envelope) -> tuple[tuple[str, str], Reason | None]:
    return outcome(envelope), envelope.error.code if envelope.error else None


def deletion_of(envelope: Envelope) -> str:
    return str((envelope.data or {})["steps"][0]["output"]["deletion_id"])


async def queued(sagas: Sagas) -> None:
    """Come back when an intent waits for a lock."""
    async with asyncio.timeout(BOUND_SECONDS):
        while not sagas.rows("select 1 from backstay.counting_locks where not is_held"):  # noqa: ASYNC110 - rows tell
            await asyncio.sleep(0.02)


async def test_a_deletion_marks_what_matches_and_nothing_else(sagas: Sagas) -> None:
    envelope = await sagas.run(delete())

    assert outcome(envelope) == ("COMMITTED", "none")
    assert (envelope.data or {})["steps"][0]["output"]["record_count"] == LETTERS
    assert (living(sagas), kept(sagas)) == (1, LETTERS + 1)
    assert living(sagas, FOREIGN_FILE) == LETTERS


async def test_one_record_more_than_was_said_and_none_goes(sagas: Sagas) -> None:
    envelope = await sagas.run(delete(records_max=LETTERS - 1))

    assert refusal(envelope) == (("NOT_APPLIED", "refused"), Reason.LIMIT_EXCEEDED)
    assert envelope.error is not None
    assert envelope.error.details["record_count"] == LETTERS
    assert living(sagas) == LETTERS + 1
    assert sagas.rows("select 1 from records.deletions") == []


async def test_a_refusal_later_in_the_plan_brings_the_records_back(sagas: Sagas) -> None:
    sagas.behaviour.refuse("no")

    envelope = await sagas.run(delete(), note("no"))

    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert living(sagas) == LETTERS + 1
    assert sagas.one("select state from records.deletions")["state"] == "RESTORED"


@pytest.mark.situation(19)
async def test_delete_purge_and_tell_is_one_intent_and_the_notice_is_queued_once(sagas: Sagas) -> None:
    body = request(delete(), purge(), notice())

    envelope = await sagas.result(await sagas.start(body))
    again = await sagas.result(await sagas.start(body))

    assert outcome(envelope) == outcome(again) == ("COMMITTED", "none")
    assert again.meta.duplicate
    assert (living(sagas), kept(sagas)) == (1, 1)
    assert sagas.one("select count(*) as n from records.deletion_items")["n"] == LETTERS
    assert sagas.one("select template, reference, sent_at from notices.outbox") == {
        "template": "RECORDS_DELETED",
        "reference": "CASE-4711",
        "sent_at": None,
    }


async def test_a_notice_before_something_that_may_refuse_is_refused_with_the_legal_order(sagas: Sagas) -> None:
    with pytest.raises(Exception, match="Workflow execution failed") as caught:
        await sagas.run(notice(), {**delete(), "needs": []}, purge())

    assert "Legal order: delete, purge, tell" in str(caught.value.__cause__)
    assert living(sagas) == LETTERS + 1


async def test_a_restored_deletion_is_done_again_when_the_restoring_is_compensated(sagas: Sagas) -> None:
    deletion = deletion_of(await sagas.run(delete()))
    sagas.behaviour.refuse("no")

    envelope = await sagas.run(restore(deletion), note("no"))

    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert living(sagas) == 1
    assert sagas.one("select state from records.deletions")["state"] == "DELETED"


async def test_a_deletion_that_was_restored_after_an_unlock_does_not_commit(sagas: Sagas) -> None:
    intent = await opened(sagas)
    added = await intent.add(delete())
    assert added.step is not None
    deletion = (added.step.output or {})["deletion_id"]
    await unlock(sagas.engine.database, f"file:{FILE}", tenant="bank", operator="operator", reason="it hangs")
    assert outcome(await sagas.run(restore(deletion))) == ("COMMITTED", "none")

    answer = await intent.commit()

    assert (answer.accepted, answer.outcome) == (False, "COMPENSATED")
    assert answer.error is not None
    assert answer.error.code is Reason.RESOURCE_LOCKED
    assert living(sagas) == LETTERS + 1


async def test_nobody_purges_what_an_open_intent_may_still_restore(sagas: Sagas) -> None:
    gate = sagas.behaviour.hold("no")
    sagas.behaviour.refuse("no")
    handle = await sagas.start(request(delete(), note("no")))
    await gate.arrived()
    (row,) = sagas.rows("select deletion_id from records.deletions")

    purging = await sagas.start(request(purge(row["deletion_id"])))
    await queued(sagas)
    gate.open()

    assert outcome(await sagas.result(handle)) == ("COMPENSATED", "refused")
    assert refusal(await sagas.result(purging)) == (("NOT_APPLIED", "refused"), Reason.WRONG_STATE)
    assert living(sagas) == LETTERS + 1


async def test_what_was_purged_by_hand_meanwhile_is_told_as_residue(sagas: Sagas) -> None:
    gate = sagas.behaviour.hold("no")
    sagas.behaviour.refuse("no")
    handle = await sagas.start(request(delete(), note("no")))
    await gate.arrived()
    row = sagas.one("update records.deletions set state = 'PURGED', closed_at = now() returning deletion_id")

    gate.open()
    envelope = await sagas.result(handle)

    step = (envelope.data or {})["steps"][0]
    assert outcome(envelope) == ("COMPENSATED", "refused")
    assert step["residue"] == f"deletion {row['deletion_id']} was purged: {LETTERS} records are gone for good"


@pytest.mark.parametrize(
    ("file_id", "reason"),
    [
        (FOREIGN_FILE, Reason.NOT_OWNER),
        (HELD_FILE, Reason.WRONG_STATE),
        ("F99999999", Reason.OBJECT_NOT_FOUND),
    ],
)
async def test_files_that_are_not_for_this_principal_or_are_on_hold_stay_whole(
    sagas: Sagas, file_id: str, reason: Reason
) -> None:
    envelope = await sagas.run(delete(file_id=file_id))

    assert refusal(envelope) == (("NOT_APPLIED", "rejected"), reason)
    assert sagas.rows("select 1 from records.records where deletion_id is not null") == []


async def test_a_legal_hold_between_deletion_and_purge_stops_the_purge(sagas: Sagas) -> None:
    deletion = deletion_of(await sagas.run(delete()))
    sagas.rows("update records.files set state = 'LEGAL_HOLD' where file_id = %s", FILE)

    envelope = await sagas.run(purge(deletion))

    assert refusal(envelope) == (("NOT_APPLIED", "refused"), Reason.WRONG_STATE)
    assert kept(sagas) == LETTERS + 1


async def test_a_purge_is_done_once_and_the_deletion_cannot_be_restored_after_it(sagas: Sagas) -> None:
    deletion = deletion_of(await sagas.run(delete()))

    first, second = await asyncio.gather(*(sagas.run(purge(deletion)) for _ in range(2)))
    restored = await sagas.run(restore(deletion))

    assert {outcome(first), outcome(second)} <= {
        ("COMMITTED", "none"),
        ("NOT_APPLIED", "refused"),
        ("NOT_APPLIED", "rejected"),
    }
    assert [outcome(first), outcome(second)].count(("COMMITTED", "none")) == 1
    assert refusal(restored) == (("NOT_APPLIED", "rejected"), Reason.WRONG_STATE)
    assert kept(sagas) == 1


async def test_two_deletions_of_one_file_at_once_share_no_record(sagas: Sagas) -> None:
    both = await asyncio.gather(*(sagas.run(delete()) for _ in range(2)))

    counts = sorted((envelope.data or {})["steps"][0]["output"]["record_count"] for envelope in both)
    assert counts == [0, LETTERS]
    assert sagas.one("select count(*) as n, count(distinct record_id) as d from records.deletion_items") == {
        "n": LETTERS,
        "d": LETTERS,
    }


async def test_more_than_a_hundred_records_wait_for_a_person_and_nothing_is_marked_meanwhile(sagas: Sagas) -> None:
    handle = await sagas.start(request(delete(records_max=101)))
    card = await sagas.waiting(handle)

    assert states(card) == {"delete": "AWAITING_APPROVAL"}
    assert living(sagas) == LETTERS + 1
    assert (await sagas.update(handle, "decide", approval(card))).accepted
    assert outcome(await sagas.result(handle)) == ("COMMITTED", "none")


async def test_no_handler_can_purge_what_is_not_deleted_nor_change_what_is_purged(sagas: Sagas) -> None:
    database = sagas.engine.database
    deletion = deletion_of(await sagas.run(delete()))
    await sagas.run(purge(deletion))

    with pytest.raises(CheckViolation, match="is not deleted"):
        await database.one("delete from records.records where category = 'DOCUMENT' returning 1")
    with pytest.raises(CheckViolation, match="nothing changes that"):
        await database.one("update records.deletions set state = 'DELETED', closed_at = null returning 1")
    with pytest.raises(InsufficientPrivilege):
        await database.one("update records.records set content = 'other' returning 1")

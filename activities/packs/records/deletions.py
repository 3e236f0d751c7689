"""Deleting a customer's records so that it can be taken back, and taking it back.

A deletion marks; nothing is lost before a purge. It counts, under lock, what it is about to mark and marks nothing when
that is more than was said: the number that a person approved is a ceiling, not an estimate.
"""

from typing import Final, LiteralString

from pydantic import Field

from activities.database import Row, Transaction
from activities.packs.records.fields import (
    DELETABLE,
    OWNER,
    Category,
    DeletionId,
    DeletionReason,
    FileId,
    RecordCount,
    RecordsMax,
    RestoreReason,
)
from activities.tool import Compensated, StepContext, Tool
from contracts.base import Contract
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.tool import Access, Description, Example, LockMode, ObjectMade, ResourceUse, SideEffect, ToolContract

FILE_RESOURCE: Final[LiteralString] = """
select file_id as object_id, tenant, principal, state, null::text as currency, null::bigint as available_cents,
    null::bigint as limit_cents
from records.files where file_id = any(%s)
"""
DELETION_RESOURCE: Final[LiteralString] = """
select d.deletion_id as object_id, d.tenant, f.principal, d.state, null::text as currency,
    null::bigint as available_cents, null::bigint as limit_cents, 'file:' || d.file_id as within
from records.deletions d join records.files f using (file_id) where d.deletion_id = any(%s)
"""

_DELETE: Final[LiteralString] = """
with file as materialized (
    select file_id from records.files
    where file_id = %(file_id)s and tenant = %(tenant)s and principal = %(principal)s and state = 'OPEN'
    for share
), found as materialized (
    select r.record_id from records.records r join file using (file_id)
    where r.deletion_id is null and r.category = coalesce(%(category)s, r.category::text)
    for update of r
), counted as (
    select file_id, (select count(*) from found) as record_count from file
), deletion as (
    insert into records.deletions (tenant, file_id, category, record_count, reason_code, transaction_id, step_key,
        intent_id)
    select %(tenant)s, file_id, %(category)s, record_count, %(reason_code)s, %(transaction_id)s::bigint, %(step_key)s,
        %(intent_id)s
    from counted where record_count <= %(records_max)s::bigint
    returning deletion_id
), items as (
    insert into records.deletion_items (deletion_id, record_id) select deletion_id, record_id from deletion, found
)
select counted.record_count, deletion.deletion_id from counted left join deletion on true
"""
_MARK: Final[LiteralString] = """
update records.records r set deletion_id = i.deletion_id
from records.deletion_items i where i.deletion_id = %(deletion_id)s and r.record_id = i.record_id
    and r.deletion_id is null
"""
_REOPEN: Final[LiteralString] = """
update records.deletions d set state = %(becomes)s::text,
    closed_at = case %(becomes)s::text when 'DELETED' then null else now() end
from records.files f
where d.deletion_id = %(deletion_id)s and d.tenant = %(tenant)s and d.state = %(was)s::text and f.file_id = d.file_id
    and f.principal = %(principal)s
returning d.file_id, d.record_count
"""
_UNMARK: Final[LiteralString] = "update records.records set deletion_id = null where deletion_id = %(deletion_id)s"
_READ_FILE: Final[LiteralString] = "select tenant, principal, state from records.files where file_id = %(file_id)s"
_READ: Final[LiteralString] = """
select d.tenant, f.principal, d.state, d.record_count from records.deletions d join records.files f using (file_id)
where d.deletion_id = %(deletion_id)s
"""


class DeleteCustomerRecords(Contract):
    """Mark the records of a file as deleted."""

    file_id: FileId
    category: Category | None = Field(
        default=None, description="Only records of this category; left out: all.", examples=["CORRESPONDENCE"]
    )
    records_max: RecordsMax
    reason_code: DeletionReason = Field(description="Why they go.", examples=["CUSTOMER_REQUEST"])


class DeletedCustomerRecords(Contract):
    """The deletion; restore_customer_records and purge_deleted_records take its id."""

    deletion_id: DeletionId
    file_id: FileId
    record_count: RecordCount


class RestoreCustomerRecords(Contract):
    """Take a deletion back."""

    deletion_id: DeletionId
    reason_code: RestoreReason = Field(description="Why they come back.", examples=["DELETED_BY_MISTAKE"])


class RestoredCustomerRecords(Contract):
    """What came back."""

    deletion_id: DeletionId
    record_count: RecordCount


async def delete(transaction: Transaction, step: DeleteCustomerRecords, context: StepContext) -> DeletedCustomerRecords:
    """Count, then mark all or none. Raises SagaError to refuse."""
    row = await transaction.one(
        _DELETE,
        {
            "file_id": step.file_id,
            "category": step.category,
            "records_max": step.records_max,
            "reason_code": step.reason_code.value,
            "tenant": context.tenant,
            "principal": context.principal,
            "transaction_id": context.transaction_id,
            "step_key": context.step_key,
            "intent_id": context.intent_id,
        },
    )
    if row is None:
        file = await transaction.one(_READ_FILE, {"file_id": step.file_id})
        require(file, "file", step.file_id, context, DELETABLE)
        raise race(step.file_id)
    if row["deletion_id"] is None:
        raise too_many(row["record_count"], step.records_max)
    await transaction.later(_MARK, {"deletion_id": row["deletion_id"]})
    return DeletedCustomerRecords(
        deletion_id=row["deletion_id"], file_id=step.file_id, record_count=row["record_count"]
    )


async def undelete(
    transaction: Transaction, _: DeleteCustomerRecords, output: DeletedCustomerRecords | None, context: StepContext
) -> Compensated:
    """Unmark what this deletion marked; restored already is a success, purged is residue."""
    if output is None:  # a database tool's outcome is always known
        raise SagaError(Reason.OUTCOME_UNKNOWN, "The deletion's id is not known; look the step up first.")
    if await _turn(transaction, output.deletion_id, context, was="DELETED", becomes="RESTORED"):
        await transaction.later(_UNMARK, {"deletion_id": output.deletion_id})
        return Compensated()
    row = await transaction.one(_READ, {"deletion_id": output.deletion_id})
    deletion = require(row, "deletion", output.deletion_id, context)
    if deletion["state"] == "PURGED":
        count = deletion["record_count"]
        return Compensated(residue=f"deletion {output.deletion_id} was purged: {count} records are gone for good")
    return Compensated()


async def restore(
    transaction: Transaction, step: RestoreCustomerRecords, context: StepContext
) -> RestoredCustomerRecords:
    """Unmark what a deletion marked. Raises SagaError to refuse."""
    row = await _turn(transaction, step.deletion_id, context, was="DELETED", becomes="RESTORED")
    if row is None:
        found = await transaction.one(_READ, {"deletion_id": step.deletion_id})
        require(found, "deletion", step.deletion_id, context, {"DELETED"})
        raise race(step.deletion_id)
    await transaction.later(_UNMARK, {"deletion_id": step.deletion_id})
    return RestoredCustomerRecords(deletion_id=step.deletion_id, record_count=row["record_count"])


async def delete_again(
    transaction: Transaction, step: RestoreCustomerRecords, _: RestoredCustomerRecords | None, context: StepContext
) -> Compensated:
    """Mark the same records once more, but for those that another deletion has marked meanwhile."""
    if await _turn(transaction, step.deletion_id, context, was="RESTORED", becomes="DELETED"):
        await transaction.later(_MARK, {"deletion_id": step.deletion_id})
    return Compensated()


async def _turn(
    transaction: Transaction, deletion_id: str, context: StepContext, *, was: str, becomes: str
) -> Row | None:
    return await transaction.one(
        _REOPEN,
        {
            "deletion_id": deletion_id,
            "was": was,
            "becomes": becomes,
            "tenant": context.tenant,
            "principal": context.principal,
        },
    )


def require(
    row: Row | None, kind: str, object_id: str, context: StepContext, states: frozenset[str] | set[str] | None = None
) -> Row:
    """Refuse what is absent or another tenant's, then what is another principal's, then a wrong state."""
    if row is None or row["tenant"] != context.tenant:
        raise SagaError(
            Reason.OBJECT_NOT_FOUND,
            f"There is no {kind} {object_id}; look it up, never invent an id.",
            details={f"{kind}_id": object_id},
        )
    if row["principal"] != context.principal:
        raise SagaError(
            Reason.NOT_OWNER,
            f"The {kind} {object_id} does not belong to {context.principal}; use one that does.",
            details={f"{kind}_id": object_id, "principal": context.principal},
        )
    if states is not None and row["state"] not in states:
        wanted = " or ".join(sorted(states))
        raise SagaError(
            Reason.WRONG_STATE,
            f"The {kind} {object_id} is {row['state']}; this needs {wanted}.",
            details={f"{kind}_id": object_id, "state": row["state"], "allowed_states": sorted(states)},
        )
    return row


def too_many(record_count: int, records_max: int) -> SagaError:
    """Say that there is more than was approved; nothing was touched."""
    return SagaError(
        Reason.LIMIT_EXCEEDED,
        f"There are {record_count} records, at most {records_max} may go; post again with what is meant.",
        details={"record_count": record_count, "records_max": records_max},
    )


def race(object_id: str) -> SagaError:
    """Say that somebody changed an object between two statements; the engine tries again."""
    return SagaError(Reason.IN_PROGRESS, f"{object_id} changed meanwhile; it is tried again.")


DELETE_CUSTOMER_RECORDS: Final = Tool(
    contract=ToolContract(
        name="delete_customer_records",
        title="Delete customer records",
        description=Description(
            does="Marks the records in a customer's file as deleted; they can be restored until they are purged.",
            use_when="a customer asks for it, or records may not be kept any longer.",
            not_when="they must be gone for good at once (purge_deleted_records afterwards).",
            needs="an OPEN file of the customer, how many records at most, and why.",
            returns="the deletion_id that restore and purge take, and how many records it was.",
        ),
        side_effect=SideEffect.REVERSIBLE,
        input=DeleteCustomerRecords,
        output=DeletedCustomerRecords,
        reasons=(Reason.OBJECT_NOT_FOUND, Reason.NOT_OWNER, Reason.WRONG_STATE, Reason.LIMIT_EXCEEDED),
        resources=(
            ResourceUse(argument="file_id", kind="file", access=Access.TAKE, states=DELETABLE, lock=LockMode.EXCLUSIVE),
        ),
        makes=(ObjectMade(output="deletion_id", kind="deletion", state="DELETED"),),
        rows_argument="records_max",
        compensates_by="Restores exactly the records that it marked.",
        preconditions=("The file is OPEN and the principal's, with at most records_max records that match.",),
        postconditions=("Every matching record is marked, none besides, and each is listed with the deletion.",),
        examples=(
            Example(
                utterance="Delete my letters, it should be about ten.",
                arguments={
                    "file_id": "F00000017",
                    "category": "CORRESPONDENCE",
                    "records_max": 12,
                    "reason_code": "CUSTOMER_REQUEST",
                },
            ),
        ),
        owner=OWNER,
    ),
    execute=delete,
    compensate=undelete,
)

RESTORE_CUSTOMER_RECORDS: Final = Tool(
    contract=ToolContract(
        name="restore_customer_records",
        title="Restore customer records",
        description=Description(
            does="Takes a deletion back: its records are as they were.",
            use_when="records were deleted by mistake, or are needed after all.",
            not_when="the deletion was purged; then there is nothing left.",
            needs="the deletion_id, and why.",
            returns="how many records came back.",
        ),
        side_effect=SideEffect.REVERSIBLE,
        input=RestoreCustomerRecords,
        output=RestoredCustomerRecords,
        reasons=(Reason.OBJECT_NOT_FOUND, Reason.NOT_OWNER, Reason.WRONG_STATE),
        resources=(
            ResourceUse(
                argument="deletion_id",
                kind="deletion",
                access=Access.TAKE,
                states=frozenset({"DELETED"}),
                state_after="RESTORED",
                lock=LockMode.EXCLUSIVE,
            ),
        ),
        compensates_by="Marks the same records as deleted again.",
        preconditions=("The deletion is the principal's and neither restored nor purged.",),
        postconditions=("None of its records is marked any longer.",),
        examples=(
            Example(
                utterance="I need the letters after all.",
                arguments={"deletion_id": "D0000000042", "reason_code": "CUSTOMER_REQUEST"},
            ),
        ),
        owner=OWNER,
    ),
    execute=restore,
    compensate=delete_again,
)

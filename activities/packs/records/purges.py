"""Purging: what a deletion marked is gone for good. The way back ends here, so a plan has at most this one pivot."""

from typing import Final, LiteralString

from pydantic import Field

from activities.database import Transaction
from activities.packs.records.deletions import race, require, too_many
from activities.packs.records.fields import OWNER, DeletionId, DeletionReason, RecordCount, RecordsMax
from activities.tool import StepContext, Tool
from contracts.base import Contract
from contracts.reasons import Reason
from contracts.tool import Access, Description, Example, LockMode, ResourceUse, SideEffect, ToolContract

_COUNT: Final[LiteralString] = """
select d.deletion_id, d.tenant, f.principal, d.state, f.state as file_state,
    (select count(*) from records.records r where r.deletion_id = d.deletion_id) as record_count
from records.deletions d join records.files f using (file_id)
where d.deletion_id = %(deletion_id)s
for update of d for share of f
"""
_PURGE: Final[LiteralString] = """
with gone as (delete from records.records where deletion_id = %(deletion_id)s returning 1),
deletion as (
    update records.deletions set state = 'PURGED', closed_at = now() where deletion_id = %(deletion_id)s returning 1
)
select (select count(*) from gone) as record_count, (select count(*) from deletion) as deletions
"""


class PurgeDeletedRecords(Contract):
    """Remove what a deletion marked."""

    deletion_id: DeletionId
    records_max: RecordsMax
    reason_code: DeletionReason = Field(description="Why they go for good.", examples=["RETENTION_OVER"])


class PurgedDeletedRecords(Contract):
    """What is gone."""

    deletion_id: DeletionId
    record_count: RecordCount


async def purge(transaction: Transaction, step: PurgeDeletedRecords, context: StepContext) -> PurgedDeletedRecords:
    """Count, then remove all or none. Raises SagaError to refuse."""
    row = await transaction.one(_COUNT, {"deletion_id": step.deletion_id})
    deletion = require(row, "deletion", step.deletion_id, context, {"DELETED"})
    require({**deletion, "state": deletion["file_state"]}, "file", "of the deletion", context, {"OPEN"})
    if deletion["record_count"] > step.records_max:
        raise too_many(deletion["record_count"], step.records_max)
    gone = await transaction.one(_PURGE, {"deletion_id": step.deletion_id})
    if gone is None or gone["record_count"] != deletion["record_count"]:
        raise race(step.deletion_id)
    return PurgedDeletedRecords(deletion_id=step.deletion_id, record_count=gone["record_count"])


PURGE_DELETED_RECORDS: Final = Tool(
    contract=ToolContract(
        name="purge_deleted_records",
        title="Purge deleted records",
        description=Description(
            does="Removes for good what a deletion marked.",
            use_when="deleted records may not even be kept as deleted.",
            not_when="anybody may want them back (leave them deleted).",
            needs="the deletion_id, how many records at most, and why.",
            returns="how many records are gone.",
        ),
        side_effect=SideEffect.IRREVERSIBLE,
        input=PurgeDeletedRecords,
        output=PurgedDeletedRecords,
        reasons=(Reason.OBJECT_NOT_FOUND, Reason.NOT_OWNER, Reason.WRONG_STATE, Reason.LIMIT_EXCEEDED),
        resources=(
            ResourceUse(
                argument="deletion_id",
                kind="deletion",
                access=Access.TAKE,
                states=frozenset({"DELETED"}),
                state_after="PURGED",
                lock=LockMode.EXCLUSIVE,
            ),
        ),
        rows_argument="records_max",
        preconditions=("The deletion is the principal's, neither restored nor purged, its file is OPEN.",),
        postconditions=("None of its records exists; that they existed stays on the list of the deletion.",),
        examples=(
            Example(
                utterance="And now delete them for good.",
                arguments={"deletion_id": "D0000000042", "records_max": 12, "reason_code": "CUSTOMER_REQUEST"},
            ),
        ),
        owner=OWNER,
    ),
    execute=purge,
)

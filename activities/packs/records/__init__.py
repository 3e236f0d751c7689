"""The records pack: what is kept about customers, deleted so that it can be taken back, and purged."""

from typing import Final

from activities.packs.records.deletions import (
    DELETE_CUSTOMER_RECORDS,
    DELETION_RESOURCE,
    FILE_RESOURCE,
    RESTORE_CUSTOMER_RECORDS,
)
from activities.packs.records.purges import PURGE_DELETED_RECORDS
from activities.tool import Pack

__all__ = ["PACK"]

PACK: Final = Pack(
    name="records",
    tools=(DELETE_CUSTOMER_RECORDS, RESTORE_CUSTOMER_RECORDS, PURGE_DELETED_RECORDS),
    resources={"file": FILE_RESOURCE, "deletion": DELETION_RESOURCE},
)

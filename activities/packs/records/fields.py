"""The words, bounds and field types that the tools for records share; each is told to agents with an example."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

RECORDS_MAX: Final = 10_000
OWNER: Final = "data protection"
DELETABLE: Final = frozenset({"OPEN"})


class Category(StrEnum):
    """What a record is about."""

    CONTACT = "CONTACT"
    CORRESPONDENCE = "CORRESPONDENCE"
    PREFERENCE = "PREFERENCE"
    DOCUMENT = "DOCUMENT"


class DeletionReason(StrEnum):
    """Why records go."""

    CUSTOMER_REQUEST = "CUSTOMER_REQUEST"
    RETENTION_OVER = "RETENTION_OVER"
    DUPLICATE = "DUPLICATE"
    COLLECTED_WRONGLY = "COLLECTED_WRONGLY"


class RestoreReason(StrEnum):
    """Why deleted records come back."""

    CUSTOMER_REQUEST = "CUSTOMER_REQUEST"
    DELETED_BY_MISTAKE = "DELETED_BY_MISTAKE"
    LEGAL_ORDER = "LEGAL_ORDER"


FileId = Annotated[str, Field(pattern=r"^F[0-9]{8}$", description="The customer's file.", examples=["F00000017"])]
DeletionId = Annotated[
    str,
    Field(pattern=r"^D[0-9]{10}$", description="The deletion, from delete_customer_records.", examples=["D0000000042"]),
]
RecordsMax = Annotated[
    int,
    Field(
        ge=1,
        le=RECORDS_MAX,
        description="The most records that may be affected; if there are more, none is.",
        examples=[12],
    ),
]
RecordCount = Annotated[int, Field(ge=0, le=RECORDS_MAX, description="How many records it was.", examples=[12])]

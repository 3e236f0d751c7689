"""The notices pack: tell a customer. A notice cannot be unsaid, and queueing one cannot fail: it may follow a pivot.

It is a row in an outbox, written in the effect's transaction; a relay sends what is there and says when it did
(docs/operations.md). The pattern is the transactional outbox.
"""

from enum import StrEnum
from typing import Annotated, Final, LiteralString

from pydantic import Field

from activities.database import Transaction
from activities.tool import Pack, StepContext, Tool
from contracts.base import Contract
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.tool import Access, Description, Example, ResourceUse, SideEffect, ToolContract

_CONTACT_RESOURCE: Final[LiteralString] = """
select contact_id as object_id, tenant, principal, state, null::text as currency, null::bigint as available_cents,
    null::bigint as limit_cents
from notices.contacts where contact_id = any(%s)
"""
_QUEUE: Final[LiteralString] = """
insert into notices.outbox (tenant, contact_id, template, reference, transaction_id, step_key, intent_id)
select tenant, contact_id, %(template)s, %(reference)s, %(transaction_id)s::bigint, %(step_key)s, %(intent_id)s
from notices.contacts where contact_id = %(contact_id)s and tenant = %(tenant)s and principal = %(principal)s
returning notice_id
"""

ContactId = Annotated[
    str, Field(pattern=r"^N[0-9]{8}$", description="Where the customer is reached.", examples=["N00000017"])
]


class Template(StrEnum):
    """The notices that exist; their words are kept by the relay, no model writes to customers here."""

    RECORDS_DELETED = "RECORDS_DELETED"
    PAYMENT_SENT = "PAYMENT_SENT"
    PAYMENT_RETURNED = "PAYMENT_RETURNED"
    ACCOUNT_LOCKED = "ACCOUNT_LOCKED"
    ACCOUNT_UNLOCKED = "ACCOUNT_UNLOCKED"


class SendCustomerNotice(Contract):
    """Tell a customer what was done."""

    contact_id: ContactId
    template: Template = Field(description="Which notice.", examples=["RECORDS_DELETED"])
    reference: Annotated[
        str,
        Field(pattern=r"^[A-Z0-9-]{1,40}$", description="What it is about, as printed on it.", examples=["CASE-4711"]),
    ]


class SentCustomerNotice(Contract):
    """The notice as queued."""

    notice_id: Annotated[str, Field(pattern=r"^T[0-9]{10}$", description="The notice.", examples=["T0000000042"])]


async def queue(transaction: Transaction, step: SendCustomerNotice, context: StepContext) -> SentCustomerNotice:
    """Put a notice into the outbox. Admission has seen the contact, and contacts are never removed."""
    row = await transaction.one(
        _QUEUE,
        {
            "contact_id": step.contact_id,
            "template": step.template.value,
            "reference": step.reference,
            "tenant": context.tenant,
            "principal": context.principal,
            "transaction_id": context.transaction_id,
            "step_key": context.step_key,
            "intent_id": context.intent_id,
        },
    )
    if row is None:
        raise SagaError(
            Reason.OBJECT_NOT_FOUND,
            f"The contact {step.contact_id} was there at admission and is not; the table was changed by hand.",
            details={"contact_id": step.contact_id},
        )
    return SentCustomerNotice(notice_id=row["notice_id"])


SEND_CUSTOMER_NOTICE: Final = Tool(
    contract=ToolContract(
        name="send_customer_notice",
        title="Send a notice to a customer",
        description=Description(
            does="Queues one of the standing notices for a customer; it is sent soon and cannot be unsent.",
            use_when="something was done that the customer has to be told.",
            not_when="there is anything left in the plan that may be refused; put it last.",
            needs="an ACTIVE contact of the customer, which notice, and what it is about.",
            returns="the notice_id, by which its sending can be followed.",
        ),
        side_effect=SideEffect.IRREVERSIBLE,
        input=SendCustomerNotice,
        output=SentCustomerNotice,
        may_refuse=False,
        resources=(
            ResourceUse(argument="contact_id", kind="contact", access=Access.READ, states=frozenset({"ACTIVE"})),
        ),
        preconditions=("The contact belongs to the principal and is ACTIVE when the intent is admitted.",),
        postconditions=("Exactly one notice is in the outbox for this step.",),
        examples=(
            Example(
                utterance="Tell me when it is done.",
                arguments={"contact_id": "N00000017", "template": "RECORDS_DELETED", "reference": "CASE-4711"},
            ),
        ),
        owner="customer relations",
    ),
    execute=queue,
)

PACK: Final = Pack(name="notices", tools=(SEND_CUSTOMER_NOTICE,), resources={"contact": _CONTACT_RESOURCE})

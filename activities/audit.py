"""The audit log: one row in the transaction of what it tells, or that did not happen.

Each row carries its own digest and that of its step's previous row, computed in SQL (`backstay.append_audit`),
so that an auditor can check it with psql alone.
"""

import json
from collections.abc import Iterable
from typing import Final

from activities.database import Transaction
from contracts.base import JsonObject
from contracts.intent import Caller

MASK: Final = "***"
DOOR_REFUSALS_PER_MINUTE_MAX: Final = 60


def masked(arguments: JsonObject, sensitive: Iterable[str]) -> str:
    """Show arguments without what the contract calls sensitive."""
    hidden = set(sensitive)
    shown = {name: MASK if name in hidden else value for name, value in arguments.items()}
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))


async def append(
    transaction: Transaction,
    kind: str,
    *,
    caller: Caller,
    intent_key: str | None = None,
    step_id: str | None = None,
    tool: str | None = None,
    actor: str | None = None,
    transaction_id: int | None = None,
    arguments: str | None = None,
    policy_digest: str | None = None,
    decisions: str | None = None,
    result: JsonObject | None = None,
) -> None:
    """Queue one row; it commits or vanishes with everything else in the transaction."""
    await transaction.later(
        "select backstay.append_audit(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        (
            kind,
            caller.tenant,
            intent_key,
            step_id,
            tool,
            caller.agent,
            caller.principal,
            actor,
            transaction_id,
            arguments,
            policy_digest,
            decisions,
            json.dumps(result, ensure_ascii=False, separators=(",", ":"), default=str),
        ),
    )


async def door_refused(transaction: Transaction, caller: Caller, result: JsonObject) -> None:
    """Note a refusal at the door; at most sixty a minute and agent, so that a flood cannot fill the disk."""
    await transaction.later(
        "select backstay.append_audit('door_refused', %(tenant)s, null, null, null, %(agent)s, %(principal)s, null,"
        " null, null, null, null, %(result)s)"
        " where (select count(*) from backstay.audit_log where kind = 'door_refused' and agent = %(agent)s"
        " and at > now() - interval '1 minute') < %(most)s",
        {
            "tenant": caller.tenant,
            "agent": caller.agent,
            "principal": caller.principal,
            "result": json.dumps(result, ensure_ascii=False, default=str),
            "most": DOOR_REFUSALS_PER_MINUTE_MAX,
        },
    )

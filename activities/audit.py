"""The audit log: one row in the transaction of what it tells, or that did not happen.

Each row carries its own digest and that of its step's previous row, computed in SQL (`backstay.append_audit`),
so that an auditor can check it with psql alone.
"""

import json
from collections.abc import Iterable
from typing import Any, Final, LiteralString

from activities.database import Transaction
from contracts.base import JsonObject
from contracts.intent import Caller

MASK: Final = "***"
REFUSALS_PER_MINUTE_MAX: Final = 60
ARGUMENTS_NOTED_LENGTH_MAX: Final = 8_192

_REFUSED: Final[LiteralString] = (
    "select backstay.append_audit('KIND', %(tenant)s, null, null, null, %(agent)s, %(principal)s, null, null,"
    " %(arguments)s, %(policy_digest)s, null, %(result)s)"
    " where (select count(*) from backstay.audit_log where kind = 'KIND' and agent = %(agent)s"
    " and at > now() - interval '1 minute') < %(most)s"
)
_DOOR_REFUSED: Final[LiteralString] = _REFUSED.replace("KIND", "door_refused")
_ADMISSION_REFUSED: Final[LiteralString] = _REFUSED.replace("KIND", "admission_refused")


def masked(arguments: JsonObject, sensitive: Iterable[str]) -> str:
    """Show arguments without what the contract calls sensitive."""
    return json.dumps(hidden(arguments, sensitive), ensure_ascii=False, separators=(",", ":"))


def hidden(value: JsonObject, sensitive: Iterable[str]) -> JsonObject:
    """Put a mask in place of what the contract calls sensitive, in arguments and in answers alike."""
    names = set(sensitive)
    return {name: MASK if name in names else shown for name, shown in value.items()}


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
    await transaction.later(_DOOR_REFUSED, _refusal(caller, result))


async def admission_refused(
    transaction: Transaction, caller: Caller, result: JsonObject, arguments: str | None, policy_digest: str
) -> None:
    """Note a refusal of admission that claims nothing; capped like those at the door, long arguments left out."""
    shown = arguments if arguments is not None and len(arguments) <= ARGUMENTS_NOTED_LENGTH_MAX else None
    values = _refusal(caller, result) | {"arguments": shown, "policy_digest": policy_digest}
    await transaction.later(_ADMISSION_REFUSED, values)


def _refusal(caller: Caller, result: JsonObject) -> dict[str, Any]:
    return {
        "tenant": caller.tenant,
        "agent": caller.agent,
        "principal": caller.principal,
        "arguments": None,
        "policy_digest": None,
        "result": json.dumps(result, ensure_ascii=False, default=str),
        "most": REFUSALS_PER_MINUTE_MAX,
    }

"""The intent as an agent posts it: who, in which conversation, which steps with which arguments."""

import re
from typing import Annotated, Final, Literal

from pydantic import Field

from contracts.base import Contract, JsonObject, JsonValue, as_object

STEPS_MAX: Final = 50
STEP_ID_PATTERN: Final = r"^[a-z][a-z0-9_]{0,47}$"
PLANNED_STEP_ID_PATTERN: Final = r"^[a-z][a-z0-9_]{0,47}(\.(fallback|confirm))?$"
"""Of any step of a plan: those that were posted, their fallbacks, and what the engine appends to confirm."""
SESSION_ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$"
REFERENCE_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._:#-]{0,127}$"
BINDING_PATTERN: Final = re.compile(r"^([a-z][a-z0-9_]{0,47})\.([a-z][a-z0-9_]{0,47}(?:\.[a-z][a-z0-9_]{0,47}){0,3})$")
FROM: Final = "$from"
"""The key that makes an object a binding."""
FALLBACK: Final = "fallback"
FALLBACK_SUFFIX: Final = f".{FALLBACK}"
FN: Final = "$fn"
"""The key that makes an object a named function of bindings."""
OF: Final = "of"
RESERVED: Final = frozenset({FROM, FN})
OPEN: Final = "open"
"""The key that makes an intent an open one."""
INTENT_ID_PATTERN: Final = r"^int_[a-z2-7]{26}$"
TOOL_PATTERN: Final = r"^[a-z][a-z0-9_]{0,63}(@[1-9][0-9]{0,2})?$"
IDEMPOTENCY_KEY_PATTERN: Final = r"^[\x21-\x7e]{1,255}$"

StepId = Annotated[str, Field(pattern=STEP_ID_PATTERN, examples=["freeze"])]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]


class Fallback(Contract):
    """Another call that may stand for a step, once it is certain that the step never lands."""

    tool: Annotated[str, Field(pattern=TOOL_PATTERN, examples=["charge_bank_card@1"])]
    arguments: Annotated[JsonObject, Field(examples=[{"amount_cents": 12_500, "currency": "EUR"}])]


class StepRequest(Contract):
    """One tool call. `needs` missing means: after the step before it; `[]` means: independent."""

    step_id: StepId
    tool: Annotated[str, Field(pattern=TOOL_PATTERN, examples=["freeze_account_funds@1"])]
    arguments: Annotated[JsonObject, Field(examples=[{"amount_cents": 12_500, "currency": "EUR"}])]
    needs: Annotated[tuple[StepId, ...], Field(max_length=STEPS_MAX, strict=False, examples=[["freeze"]])] | None = None
    fallback: Fallback | None = None


class Intent(Contract):
    """What the agent wants, in full; protocol 1."""

    protocol: Literal[1]
    session_id: Annotated[str, Field(pattern=SESSION_ID_PATTERN, examples=["chat-42"])]
    steps: Annotated[tuple[StepRequest, ...], Field(min_length=1, max_length=STEPS_MAX, strict=False)]
    business_reference: Annotated[str, Field(pattern=REFERENCE_PATTERN, examples=["INV-2026-0815"])] | None = None
    occurrence: Annotated[int, Field(ge=1, le=1_000, examples=[1])] = 1
    retry_of: Annotated[str, Field(pattern=INTENT_ID_PATTERN, examples=[f"int_{'a2' * 13}"])] | None = None
    goal: Annotated[str, Field(max_length=500, examples=["Pay the repair of the customer's bicycle."])] | None = None


class OpenIntent(Contract):
    """An intent whose steps are added as the agent learns; `open` is its name inside the conversation. Protocol 1."""

    protocol: Literal[1]
    session_id: Annotated[str, Field(pattern=SESSION_ID_PATTERN, examples=["chat-42"])]
    open: Annotated[str, Field(pattern=NAME_PATTERN, examples=["trip-to-lyon"])]
    business_reference: Annotated[str, Field(pattern=REFERENCE_PATTERN, examples=["INV-2026-0815"])] | None = None
    goal: Annotated[str, Field(max_length=500, examples=["Book the trip and pay for it."])] | None = None

    @property
    def occurrence(self) -> int:
        """One: another one has another name."""
        return 1

    @property
    def retry_of(self) -> None:
        """Nothing: as `occurrence`."""
        return


class Caller(Contract):
    """On whose behalf and through whom: from the authenticated door, never from the model."""

    tenant: Name
    principal: Name
    agent: Name


class IntentRequest(Contract):
    """Input of the workflow: an intent, its caller and what the door worked out or the harness said.

    `attempt` is 1 or one more than that of `retry_of`; `business_reference` is the harness's, never the model's.
    """

    protocol: Literal[1] = 1
    caller: Caller
    intent: JsonObject
    attempt: Annotated[int, Field(ge=1, le=1_000)] = 1
    business_reference: Annotated[str, Field(pattern=REFERENCE_PATTERN)] | None = None
    idempotency_key: Annotated[str, Field(pattern=IDEMPOTENCY_KEY_PATTERN)] | None = None
    call_id: Annotated[str, Field(max_length=255)] | None = None


def binding_of(value: JsonValue) -> tuple[str, tuple[str, ...]] | None:
    """Read `{"$from": "freeze.hold_id"}` as (step id, path); None for anything else."""
    given = as_object(value)
    if given is not None and len(given) == 1 and FROM in given:
        source = given[FROM]
        if isinstance(source, str) and (match := BINDING_PATTERN.fullmatch(source)):
            return match.group(1), tuple(match.group(2).split("."))
    return None

"""Keys never change: intents of the shipped tools with the keys that earlier versions gave them.

A key that changes makes the same post land twice. If this fails, mend the code; never the file. New intents are added
to it by hand.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from activities.packs.ledger import PACK
from activities.packs.ledger.holds import FreezeAccountFunds
from contracts.base import Contract, JsonObject
from contracts.intent import Caller
from contracts.proposal import Proposal, propose
from contracts.registry import Registry
from tests.unit.sample_contracts import CONTRACTS, NoteInput

GOLDEN: list[JsonObject] = json.loads((Path(__file__).parent / "golden_keys.json").read_text(encoding="utf-8"))
SHIPPED = [tool.contract for tool in PACK.tools]
LEDGER = Registry.of([*SHIPPED, *CONTRACTS])


class Extra(Contract):
    """An object that a tool learns to take, optional all through."""

    level: Annotated[int, Field(ge=0, le=9, description="How urgent.", examples=[1])] = 1


class FreezeOfTomorrow(FreezeAccountFunds):
    """A freeze that learned optional fields."""

    channel: Annotated[str, Field(max_length=10, description="Which door.", examples=["APP"])] = "APP"
    extra: Annotated[Extra, Field(description="More.")] = Extra()


class NoteOfTomorrow(NoteInput):
    """A note whose union's branches learned an optional field."""

    class ByAccount(NoteInput.ByAccount):
        """About an account."""

        page: Annotated[int, Field(ge=1, le=9, description="Which page.", examples=[1])] = 1

    class ByHold(NoteInput.ByHold):
        """About a hold."""

        page: Annotated[int, Field(ge=1, le=9, description="Which page.", examples=[1])] = 1

    about: Annotated[  # pyright: ignore[reportIncompatibleVariableOverride]
        ByAccount | ByHold, Field(discriminator="kind", description="What it is about.")
    ]


def tomorrow() -> Registry:
    later = {"freeze_account_funds": FreezeOfTomorrow, "write_sample_note": NoteOfTomorrow}
    return Registry(
        replace(contract, input=later.get(contract.name, contract.input)) for contract in [*SHIPPED, *CONTRACTS]
    )


def proposed(golden: JsonObject, registry: Registry) -> Proposal:
    return propose(
        golden["intent"],
        Caller.model_validate(golden["caller"]),
        registry,
        attempt=golden["attempt"],
        business_reference=golden["business_reference"],
    )


def identity(proposal: Proposal) -> dict[str, Any]:
    return {
        "intent_key": proposal.intent_key,
        "intent_id": proposal.intent_id,
        "body_digest": proposal.body_digest,
        "lineage_digest": proposal.lineage_digest,
    }


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["name"])
def test_no_key_ever_changes(golden: JsonObject) -> None:
    assert identity(proposed(golden, LEDGER)) == golden["expected"]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["name"])
def test_a_tool_that_learns_optional_fields_keeps_every_key(golden: JsonObject) -> None:
    assert identity(proposed(golden, tomorrow())) == golden["expected"]


def test_a_new_field_that_is_used_is_another_intent() -> None:
    golden = GOLDEN[0]
    steps = golden["intent"]["steps"]
    used = {**steps[0], "arguments": {**steps[0]["arguments"], "channel": "BRANCH"}}

    other = proposed({**golden, "intent": {**golden["intent"], "steps": [used, *steps[1:]]}}, tomorrow())

    assert other.intent_key != golden["expected"]["intent_key"]


def test_every_shipped_tool_has_a_golden_key() -> None:
    named = {step["tool"].partition("@")[0] for golden in GOLDEN for step in golden["intent"]["steps"]}

    assert {contract.name for contract in SHIPPED} - named == set()

"""Registration refuses what a type checker would, and more, and says what to change: for authors who have none."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio.client import Client

from activities.catalog import PackError, check_packs, load_packs
from activities.database import Database, Transaction
from activities.dispatch import Engine
from activities.packs.ledger import PACK as LEDGER
from activities.tool import AnyTool, Compensated, Pack, StepContext, Tool
from contracts.tool import Access, ResourceUse, SideEffect
from tests.support.desk import at_desk
from tests.support.samples import note
from tests.typing.right import (
    CONTRACT,
    PACK,
    TOOL,
    GrantedPoints,
    GrantPoints,
    OtherInput,
    OtherOutput,
    grant,
    undo,
)
from worker.service import check_ready
from worker.settings import Settings, SettingsError

Handler = Callable[..., Any]


def wrong(**handlers: Handler | None) -> AnyTool:
    """Put the tool together as a file without type checks would."""
    given: dict[str, Any] = {"execute": grant, "compensate": undo, **handlers}
    tool: AnyTool = Tool(contract=CONTRACT, **given)
    return tool


def refusal_of(*packs: Pack) -> str:
    """Register, and return what the refusal says."""
    with pytest.raises(PackError) as refused:
        check_packs(packs)
    return str(refused.value)


def pack_of(*tools: AnyTool) -> Pack:
    return Pack(name="typed", tools=tools)


async def without_context(_: Transaction, __: GrantPoints) -> GrantedPoints:
    return GrantedPoints(points_total=1)


def at_once(_: Transaction, __: GrantPoints, ___: StepContext) -> GrantedPoints:
    return GrantedPoints(points_total=1)


async def other_input(_: Transaction, __: OtherInput, ___: StepContext) -> GrantedPoints:
    return GrantedPoints(points_total=1)


async def other_output(_: Transaction, __: GrantPoints, ___: StepContext) -> OtherOutput:
    return OtherOutput(other_total=1)


async def undo_less(_: Transaction, __: GrantPoints, ___: StepContext) -> Compensated:
    return Compensated()


async def undo_other(_: Transaction, __: OtherInput, ___: GrantedPoints | None, ____: StepContext) -> Compensated:
    return Compensated()


def undo_at_once(_: Transaction, __: GrantPoints, ___: GrantedPoints | None, ____: StepContext) -> Compensated:
    return Compensated()


async def verify_less(_: Transaction, __: GrantPoints, ___: StepContext) -> None:
    return None


async def verify_other(_: Transaction, __: OtherInput, ___: GrantedPoints, ____: StepContext) -> None:
    return None


async def without_hints(_, __, ___):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
    return GrantedPoints(points_total=1)


def test_the_right_pack_is_accepted() -> None:
    check_packs([PACK])


def test_handlers_without_annotations_are_accepted() -> None:
    check_packs([pack_of(wrong(execute=without_hints))])  # pyright: ignore[reportUnknownArgumentType] - that is the case


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        (wrong(execute=without_context), "execute takes 2 arguments; it must take 3: see activities/tool.py."),
        (wrong(execute=undo), "execute takes 4 arguments; it must take 3: see activities/tool.py."),
        (wrong(execute=at_once), "execute must be `async def`."),
        (wrong(execute=other_input), "execute takes OtherInput, its contract's input is GrantPoints; use one."),
        (wrong(execute=other_output), "execute must return GrantedPoints, the contract's output."),
        (wrong(compensate=undo_less), "compensate takes 3 arguments; it must take 4: see activities/tool.py."),
        (wrong(compensate=undo_at_once), "compensate must be `async def`."),
        (wrong(compensate=undo_other), "compensate takes OtherInput, its contract's input is GrantPoints; use one."),
        (wrong(verify=verify_less), "verify takes 3 arguments; it must take 4: see activities/tool.py."),
        (wrong(verify=verify_other), "verify takes OtherInput, its contract's input is GrantPoints; use one."),
        (
            wrong(compensate=None),
            "is REVERSIBLE but has no compensate handler; write one or declare it IRREVERSIBLE.",
        ),
    ],
)  # fmt: skip
def test_a_handler_that_does_not_fit_is_refused_with_what_to_change(tool: AnyTool, told: str) -> None:
    assert refusal_of(pack_of(tool)).splitlines() == [f"typed: grant_typed_points: {told}"]


def test_a_tool_that_cannot_be_undone_must_not_bring_a_compensation() -> None:
    contract = replace(CONTRACT, side_effect=SideEffect.IRREVERSIBLE, compensates_by=None)

    told = refusal_of(pack_of(Tool(contract=contract, execute=grant, compensate=undo)))

    assert "is IRREVERSIBLE and yet has a compensate handler; declare it REVERSIBLE or drop it." in told


def test_a_resource_kind_without_a_query_is_refused_by_name() -> None:
    use = ResourceUse(argument="card_id", kind="card", access=Access.HOLD, states=frozenset({"OPEN"}))

    told = refusal_of(pack_of(replace(TOOL, contract=replace(CONTRACT, resources=(use,)))))

    assert "typed: grant_typed_points: resource kind 'card' has no query; add it to Pack(resources=...)." in told


def test_a_tool_name_that_is_taken_is_refused() -> None:
    told = refusal_of(PACK, replace(PACK, name="again"))

    assert "grant_typed_points@1: registered twice; rename one or raise its major" in told


def test_a_resource_kind_that_is_taken_is_refused() -> None:
    cards = replace(PACK, resources={"card": "select 1"})

    told = refusal_of(cards, Pack(name="again", tools=(), resources={"card": "select 2"}))

    assert told == "again: resource 'card' is already brought by typed; rename it."


def test_all_that_is_wrong_is_told_at_once() -> None:
    told = refusal_of(pack_of(wrong(execute=at_once, compensate=undo_other)))

    assert ["execute must be" in told, "compensate takes OtherInput" in told] == [True, True]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("PACKS = ()\n", "has no `PACK = Pack(...)`; add one: see activities/tool.py."),
        ("PACK = 'loyalty'\n", "has no `PACK = Pack(...)`; add one: see activities/tool.py."),
        (
            "import no_such_backstay_module\n",
            "cannot be imported (No module named 'no_such_backstay_module'); correct the name in BACKSTAY_PACKS.",
        ),
        (None, "cannot be imported (No module named '{module}'); correct the name in BACKSTAY_PACKS."),
    ],
)
def test_a_module_that_brings_no_pack_is_refused_by_name(
    text: str | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"brought_{tmp_path.name.replace('-', '_')}"
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    if text is not None:
        (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")

    try:
        with pytest.raises(PackError) as refused:
            load_packs([module])
    finally:
        sys.modules.pop(module, None)

    assert str(refused.value) == f"{module}: {told.format(module=module)}"


WITHOUT_SAMPLES: Final = (LEDGER,)


async def test_a_worker_that_lacks_a_tool_of_an_open_plan_does_not_start(
    database_url: str, temporal_client: Client
) -> None:
    async with at_desk(database_url) as desk, Database(database_url) as database:
        settings = Settings.load(database_url=database_url)
        await check_ready(Engine(database, WITHOUT_SAMPLES), settings, temporal_client)
        await desk.intent(note("a"))

        with pytest.raises(SettingsError) as refused:
            await check_ready(Engine(database, WITHOUT_SAMPLES), settings, temporal_client)
        await check_ready(Engine(database, desk.packs), settings, temporal_client)

    assert str(refused.value) == (
        "Open intents need tools that this worker does not have: write_sample_note@1."
        " Name their modules in BACKSTAY_PACKS."
    )


async def test_a_worker_starts_again_once_the_intent_that_needed_the_tool_has_ended(
    database_url: str, temporal_client: Client
) -> None:
    async with at_desk(database_url) as desk, Database(database_url) as database:
        intent = await desk.intent(note("a"))
        await intent.close()
        await intent.settle()

        await check_ready(Engine(database, WITHOUT_SAMPLES), Settings.load(database_url=database_url), temporal_client)

"""A plan carries everything that its saga needs, unchanged through storage, and names itself by one digest."""

from typing import Any

import pytest

from contracts.plan import Plan
from contracts.tool import Duty, SideEffect
from tests.support.plans import KEY, chain, plan, step


def test_a_stored_plan_reads_back_equal_with_the_same_digest() -> None:
    made = plan(step("a", arguments={"amount_cents": 5, "memo": "caf\u00e9 \u201cx\u201d "}, duty=Duty.ONE))

    read = Plan.parse(made.model_dump_json())

    assert read == made
    assert read.digest == made.digest
    assert read.model_dump_json() == made.model_dump_json()


@pytest.mark.parametrize(
    "changes",
    [
        {"arguments": {"amount_cents": 501}},
        {"arguments": {"amount_cents": 500, "memo": None}},
        {"arguments": {"amount_cents": 500, "memo": ""}},
        {"duty": Duty.TWO},
        {"needs": ("b",)},
        {"tool": "work_b@2"},
        {"side_effect": SideEffect.IRREVERSIBLE},
        {"resources": ("account:2",)},
    ],
    ids=str,
)
def test_an_approval_binds_to_every_part_of_every_step(changes: dict[str, Any]) -> None:
    agreed = step("a", arguments={"amount_cents": 500})

    changed = agreed.model_copy(update=changes)

    assert plan(agreed).digest != plan(changed).digest


def test_the_order_of_steps_is_part_of_the_digest() -> None:
    one, other = step("a"), step("b")

    assert plan(one, other).digest != plan(other, one).digest


def test_dependents_are_all_that_build_on_a_step_also_through_steps_that_only_read() -> None:
    made = plan(
        step("a"),
        step("r", needs=["a"], effect=SideEffect.READ_ONLY),
        step("b", needs=["r"]),
        step("c", needs=["a"]),
        step("d", needs=["b", "c"]),
    )

    assert made.dependents == {
        "a": {"r", "b", "c", "d"},
        "r": {"b", "d"},
        "b": {"d"},
        "c": {"d"},
        "d": frozenset(),
    }


def test_a_plan_is_as_risky_as_its_riskiest_step() -> None:
    made = plan(step("a"), step("b").model_copy(update={"level": 3}), step("c").model_copy(update={"level": 2}))

    assert (made.level, made.risk_level) == (3, "L3")


def test_a_plan_lists_its_tools_once_and_its_gated_steps() -> None:
    made = plan(step("b", duty=Duty.ONE), step("a"), step("c").model_copy(update={"tool": "work_a@1"}))

    assert made.tools == ("work_a@1", "work_b@1")
    assert [gated.step_id for gated in made.gated_steps] == ["b"]


def test_the_execute_key_is_made_of_the_intent_and_the_step_alone() -> None:
    assert chain("a").execute_key("a") == f"{KEY}/a/execute"


@pytest.mark.parametrize(
    ("effect", "writes", "pivot"),
    [
        (SideEffect.READ_ONLY, False, False),
        (SideEffect.REVERSIBLE, True, False),
        (SideEffect.IRREVERSIBLE, True, True),
    ],
)
def test_only_what_cannot_be_undone_is_a_pivot(effect: SideEffect, writes: bool, pivot: bool) -> None:  # noqa: FBT001
    made = step("a", effect=effect)

    assert (made.writes, made.is_pivot) == (writes, pivot)


def test_a_plan_that_a_later_release_wrote_is_read_without_what_is_unknown_here() -> None:
    text = chain("a").model_dump_json().replace('"protocol":1', '"protocol":1,"extra":2')

    assert Plan.parse(text) == chain("a")

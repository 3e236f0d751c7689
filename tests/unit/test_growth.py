"""Growing a plan by one step: pure, told by the place inside the step, sound with all before it."""

import pytest

from contracts.base import JsonObject
from contracts.errors import SagaError
from contracts.growth import grow, request_digest
from contracts.intent import STEPS_MAX, Caller
from contracts.plan import Plan, PlannedStep
from contracts.planning import plan_for
from contracts.proposal import propose
from contracts.reasons import Reason
from contracts.registry import Registry
from contracts.risk import Policy
from contracts.tool import SideEffect
from tests.support.samples import Behaviour, look, note, sample_pack

REGISTRY = Registry.of([tool.contract for tool in sample_pack(Behaviour()).tools])
CALLER = Caller(tenant="bank", principal="customer", agent="agent")


def opening(**more: object) -> JsonObject:
    return {"protocol": 1, "session_id": "chat-1", "open": "trip", **more}


def empty() -> Plan:
    return plan_for(propose(opening(), CALLER, REGISTRY), {}, Policy())


def refused(step: JsonObject, plan: Plan | None = None, *, final: bool = False) -> SagaError:
    with pytest.raises(SagaError) as caught:
        grow(plan or empty(), step, REGISTRY, final=final)
    return caught.value


def test_an_open_intent_has_the_key_of_its_name() -> None:
    first = propose(opening(), CALLER, REGISTRY)

    assert propose(opening(goal="words"), CALLER, REGISTRY).intent_key == first.intent_key
    assert propose(opening(open="other"), CALLER, REGISTRY).intent_key != first.intent_key
    assert propose(opening(), CALLER, REGISTRY, business_reference="R1").intent_key != first.intent_key
    assert propose(opening(business_reference="R1"), CALLER, REGISTRY).body_digest != first.body_digest


@pytest.mark.parametrize(
    ("more", "path"),
    [({"steps": []}, "steps"), ({"open": ""}, "open"), ({"open": 7}, "open"), ({"occurrence": 2}, "occurrence")],
)
def test_what_an_open_intent_does_not_take_is_named(more: JsonObject, path: str) -> None:
    with pytest.raises(SagaError) as caught:
        propose(opening(**more), CALLER, REGISTRY)

    assert caught.value.reason is Reason.ARGUMENTS_INVALID
    assert [problem.path for problem in caught.value.info.fields] == [path]


def test_an_added_step_comes_after_all_before_it() -> None:
    plan = empty()
    for step_id in ("a", "b", "c"):
        growth = grow(plan, note(step_id), REGISTRY, final=False)
        assert growth.added.needs == tuple(step.step_id for step in plan.steps[-1:])
        planned = {"step_id": step_id, "tool": growth.added.tool, "arguments": growth.added.arguments}
        plan = plan.model_copy(
            update={"steps": (*plan.steps, _planned(planned, growth.added.needs)), "proof_digest": growth.proof.digest}
        )

    assert [step.step_id for step in plan.steps] == ["a", "b", "c"]


def _planned(step: JsonObject, needs: tuple[str, ...]) -> PlannedStep:
    return PlannedStep(**step, needs=needs, side_effect=SideEffect.REVERSIBLE)


def test_an_irreversible_step_is_taken_as_the_last_only() -> None:
    error = refused(note("x", "seal"))

    assert error.reason is Reason.PLAN_UNSOUND
    assert "final_step" in error.info.suggestion
    assert grow(empty(), note("x", "seal"), REGISTRY, final=True).added.is_pivot


def test_fields_and_words_are_of_the_step_that_was_sent() -> None:
    error = refused({**note("x"), "arguments": {"text": 7}})

    assert [problem.path for problem in error.info.fields] == ["arguments.text"]
    assert "steps[" not in str(error) + error.info.message + error.info.user_message


def test_what_the_step_needs_is_not_said() -> None:
    error = refused({**note("x"), "needs": []})

    assert [problem.path for problem in error.info.fields] == ["needs"]


def test_one_step_too_many_is_refused_and_not_to_be_tried_again() -> None:
    plan = empty()
    many = tuple(_planned({"step_id": f"n{n}", "tool": "t@1", "arguments": {}}, ()) for n in range(STEPS_MAX))

    error = refused(look("x"), plan.model_copy(update={"steps": many}))

    assert (error.reason, error.info.retryable) == (Reason.RATE_LIMITED, "never")


def test_a_request_is_its_tool_and_arguments_whatever_the_step_is_called() -> None:
    assert request_digest(note("x", text="t")) == request_digest(note("y", text="t"))
    assert request_digest(note("x", text="t")) != request_digest(note("x", text="u"))
    assert request_digest(note("x", text="t")) != request_digest(note("x", "keep", text="t"))

"""What is explored: the smallest plans in which each rule of the reducer can go wrong."""

from dataclasses import replace
from typing import Any

from contracts.confirmation import confirmations
from contracts.graph import Node
from contracts.plan import Plan
from contracts.tool import Dispatch, Duty, SideEffect
from tests.model.rows import Weather
from tests.model.worlds import Case
from tests.support.plans import chain, falling_back, plan, step
from tests.support.reserving import CONTRACT as RESERVES

PIVOT = SideEffect.IRREVERSIBLE
STORMY = Weather(refusals=True, refused_compensations=True, mismatches=True, unsure=True)
ROUGH = Weather(refusals=True, mismatches=True, unsure=True)
NO = Weather(refusals=True)
BLIND = ROUGH._replace(knows_keys=False)
BOUND = plan(
    step("r", effect=SideEffect.READ_ONLY),
    step("a", needs=["r"], arguments={"value": {"$from": "r.value"}}),
)
SHARED = plan(step("a", resources=["o"]), step("b", resources=["o"]))
DIAMOND = plan(step("a"), step("b", needs=["a"]), step("c", needs=["a"]), step("d", needs=["b", "c"]))


def sent(made: Plan, *only: str, **changes: Any) -> Plan:  # noqa: ANN401 - fields of a step
    """The same plan with these steps, or all, sent somewhere."""
    steps = tuple(
        one.model_copy(update={"dispatch": Dispatch.REMOTE, **changes}) if not only or one.step_id in only else one
        for one in made.steps
    )
    return made.model_copy(update={"steps": steps})


def sure(made: Plan, *only: str) -> Plan:
    """The same plan with these steps not able to refuse."""
    steps = tuple(one.model_copy(update={"may_refuse": False}) if one.step_id in only else one for one in made.steps)
    return made.model_copy(update={"steps": steps})


OURS = {"dispatch": Dispatch.DATABASE}


def confirmed(made: Plan, *reserving: str) -> Plan:
    """The same plan with these steps reserving, and what the engine appends to confirm them."""
    contracts = {
        one.step_id: RESERVES if one.step_id in reserving else replace(RESERVES, confirms=None) for one in made.steps
    }
    nodes = [Node(one.step_id, contracts[one.step_id], {}, one.needs, ()) for one in made.steps]
    more = [
        step(node.step_id, needs=node.needs, effect=node.contract.side_effect).model_copy(
            update={"may_refuse": node.contract.may_refuse}
        )
        for node in confirmations(nodes)
    ]
    return made.model_copy(update={"steps": (*made.steps, *more)})


EVERYDAY: tuple[Case, ...] = (
    Case("one step", chain("a"), STORMY, foreign=True, overlap=True),
    Case("one step, ended", chain("a"), NO, crashes=False, ends=True, late=1),
    Case("one gated step", chain("a", gated=["a"]), NO),
    Case("chain of two", chain("a", "b"), STORMY, cancels=False),
    Case("pivot between", chain("a", "b", "c", pivots=["b"]), STORMY._replace(switched_off=True)),
    Case("bound to a read", BOUND, Weather(refusals=True, reads=("x", "y")), overlap=True),
    Case("two in parallel on one object", SHARED, NO),
    Case("diamond", DIAMOND, Weather(), crashes=False),
    Case("two reservations", confirmed(plan(step("a"), step("b")), "a", "b"), ROUGH),
    Case("one sent step", sent(chain("a")), STORMY),
    Case("sent chain, keys unknown", sent(chain("a", "b")), BLIND, crashes=False),
    Case("sent pivot after a step", sure(sent(chain("a", "b", pivots=["b"]), "b")), ROUGH),
    Case("sent step cancelled by key", sent(chain("a"), cancel_by_key=True), STORMY),
    Case("step with a fallback", falling_back(chain("a"), "a"), NO, cancels=False, late=1),
    Case("step with a fallback, then one", falling_back(chain("a", "b"), "a"), NO),
    Case("sent step with a fallback of ours", falling_back(sent(chain("a")), "a", **OURS), ROUGH),
)
"""Seconds: part of `make test`."""
LONG: tuple[Case, ...] = (
    Case("one step, everything", chain("a"), STORMY, ends=True, late=1, foreign=True),
    Case("one step, answers overlap", chain("a"), STORMY, late=1, overlap=True),
    Case("gated step, everything", chain("a", gated=["a"]), NO, ends=True, late=1, cancels=False),
    Case("gated step, cancel", chain("a", gated=["a"]), NO, ends=True),
    Case("two gated steps", chain("a", "b", gated=["a", "b"]), NO),
    Case("chain of two, answers overlap", chain("a", "b"), STORMY, overlap=True),
    Case("chain of two, ended", chain("a", "b"), NO, ends=True, cancels=False),
    Case("chain of two, late", chain("a", "b"), NO, late=1),
    Case("chain of four", chain("a", "b", "c", "d"), STORMY),
    Case("pivot between, late", chain("a", "b", "c", pivots=["b"]), NO, late=1),
    Case("pivot, ended", chain("a", "b", pivots=["a"]), NO, ends=True),
    Case("two reservations, everything refused", confirmed(SHARED, "a", "b"), STORMY._replace(switched_off=True)),
    Case("two reservations, late", confirmed(plan(step("a"), step("b")), "a", "b"), ROUGH, late=1),
    Case("two reservations, ended", confirmed(plan(step("a"), step("b")), "a", "b"), ROUGH, ends=True),
    Case("reservation, answers overlap", confirmed(chain("a", "b"), "a"), STORMY, overlap=True),
    Case("reservation before a sent pivot", sent(confirmed(chain("a", "b", pivots=["b"]), "a"), "b"), ROUGH),
    Case("two in parallel, answers overlap", plan(step("a"), step("b")), NO, overlap=True),
    Case("two in parallel on one object, late", SHARED, STORMY, late=1),
    Case("diamond, everything refused", DIAMOND, STORMY),
    Case("four in parallel", plan(*(step(name) for name in "abcd")), NO),
    Case("one sent step, everything", sent(chain("a")), STORMY, late=1, ends=True, foreign=True),
    Case("one sent pivot", sent(chain("a", pivots=["a"])), STORMY, late=1),
    Case("sent chain", sent(chain("a", "b")), STORMY),
    Case("sent chain, keys unknown, crashes", sent(chain("a", "b")), BLIND),
    Case("sent chain, cancelled by key", sent(chain("a", "b"), cancel_by_key=True), STORMY),
    Case("sent pivot between", sure(sent(chain("a", "b", "c", pivots=["b"])), "c"), ROUGH),
    Case("sent step beside a pivot", sent(plan(step("a"), step("b", effect=PIVOT))), ROUGH),
    Case("sent steps in parallel on one object", sent(SHARED), ROUGH),
    Case("diamond with two sent steps", sent(DIAMOND, "b", "c"), ROUGH),
    Case("sent gated step", sent(chain("a", gated=["a"])), ROUGH),
    Case("step with a fallback, everything refused", falling_back(chain("a"), "a"), STORMY, late=1),
    Case("step with a fallback, ended", falling_back(chain("a"), "a"), NO, late=1, ends=True),
    Case("gated fallback", falling_back(chain("a"), "a", duty=Duty.ONE), NO, late=1),
    Case("two steps with a fallback", falling_back(chain("a", "b"), "a", "b"), STORMY),
    Case("sent step with a sent fallback", falling_back(sent(chain("a")), "a"), ROUGH, late=1),
    Case("sent step with a fallback, cancelled by key", falling_back(sent(chain("a"), cancel_by_key=True), "a"), ROUGH),
    Case("sent pivot with a fallback", falling_back(sent(chain("a", "b", pivots=["b"]), "b"), "b"), ROUGH),
)

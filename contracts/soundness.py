"""The order of a plan: compensatable steps, then at most one pivot, then only steps that cannot refuse.

A write that cannot be undone may run only when nothing that could still say no is left. Over a graph this is one rule:
every step that may refuse is over before any irreversible step starts, except the irreversible step itself. Two
irreversible steps that may refuse break it in both directions: two pivots.
Source of the rule: the pivot of Garcia-Molina & Salem, Sagas (1987), as refined by Mehrotra et al. (1992).
"""

from collections.abc import Sequence
from dataclasses import replace

from contracts.errors import FieldProblem, Phase, SagaError
from contracts.graph import Node, ancestors_of, ordered
from contracts.reasons import Reason
from contracts.tool import SideEffect


def check_order(posted: Sequence[Node]) -> None:
    """Refuse a plan that could get stuck half-way; `posted` has no cycle and is in the order posted.

    Raises: SagaError(PLAN_UNSOUND) naming each pair of steps and, where the bindings leave one, a legal order.
    """
    clashes = _clashes(ordered(posted))
    if not clashes:
        return
    legal = _legal_order(posted)
    index = {node.step_id: number for number, node in enumerate(posted)}
    allowed = f"the order: {', '.join(legal)}" if legal else "at most one step that cannot be undone and may refuse"
    problems = tuple(
        FieldProblem(
            path=f"steps[{index[late.step_id]}]",
            code="order_unsound",
            message=f"Step {late.step_id} may refuse after step {pivot.step_id}, which cannot be undone, has landed.",
            allowed=allowed,
            example=list(legal) or None,
        )
        for pivot, late in clashes
    )
    advice = (
        f"Legal order: {', '.join(legal)}."
        if legal
        else "No order of these steps is safe; post them as several intents."
    )
    raise SagaError(
        Reason.PLAN_UNSOUND,
        f"{problems[0].message} {advice}",
        details={
            "clashes": [[pivot.step_id, late.step_id] for pivot, late in clashes],
            "legal_order": list(legal),
        },
        fields=problems,
        phase=Phase.VALIDATION,
    )


def _clashes(nodes: Sequence[Node]) -> list[tuple[Node, Node]]:
    before = ancestors_of(nodes)
    return [
        (pivot, late)
        for pivot in nodes
        if _is_irreversible(pivot)
        for late in nodes
        if late.contract.may_refuse and late is not pivot and late.step_id not in before[pivot.step_id]
    ]


def _legal_order(posted: Sequence[Node]) -> tuple[str, ...]:
    """Order the steps as late as possible for irreversible ones, keeping bindings and dropping other needs."""
    bound = [replace(node, needs=tuple(dict.fromkeys(binding.step_id for binding in node.bindings))) for node in posted]
    last = len(bound)
    rank = {node.step_id: number + last * _lateness(node) for number, node in enumerate(bound)}
    line = ordered(bound, rank)
    chained = [replace(node, needs=tuple(other.step_id for other in line[:number])) for number, node in enumerate(line)]
    return () if _clashes(chained) else tuple(node.step_id for node in line)


def _lateness(node: Node) -> int:
    if not _is_irreversible(node):
        return 0
    return 1 if node.contract.may_refuse else 2


def _is_irreversible(node: Node) -> bool:
    return node.contract.side_effect is SideEffect.IRREVERSIBLE

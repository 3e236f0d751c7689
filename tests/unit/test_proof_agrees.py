"""What the proof says of every failure is what the reducer does, on the rules of the real database."""

from collections.abc import Iterator
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.ends import End, Fault, Row, Way
from contracts.envelope import Outcome
from contracts.plan import Plan, PlannedStep
from contracts.proof import Proof, prove
from tests.support.drive import Drive, drive
from tests.support.plans import plan
from tests.support.proofs import CONTRACTS, LOCAL, graph, made

OBJECTS = ("account:1", "account:2")
STEPS_MAX = 6

PLANS = {
    "one": graph(a="undo_local_note"),
    "chain": graph(a="undo_local_note", b="read_local_note after a", c="undo_local_note after b"),
    "pivot": graph(a="undo_local_note", p="send_local_pivot after a", z="undo_sure_note after p"),
    "beside_a_pivot": graph(
        a="undo_local_note",
        p="send_local_pivot after a",
        s="undo_sure_note after a",
        f="send_sure_final after p",
        z="undo_sure_note after s",
    ),
    "diamond": graph(
        a="undo_local_note", b="undo_local_note after a", c="undo_local_note after a", d="undo_local_note after b c"
    ),
    "wide": graph(**{f"s{number}": "undo_local_note" for number in range(6)}),
    "unsound": graph(p="send_local_pivot", a="undo_local_note", q="send_local_pivot after p"),
    "falls_back": graph(
        a="undo_local_note", b="undo_local_note or undo_sure_note after a", c="undo_local_note after b"
    ),
    "falls_back_twice": graph(a="undo_local_note or undo_sure_note", b="undo_local_note or undo_local_note"),
    "falls_back_to_a_pivot": graph(
        a="undo_local_note", p="undo_local_note or send_local_pivot after a", z="undo_sure_note after p"
    ),
    "falls_back_past_a_pivot": graph(p="send_local_pivot", z="undo_sure_note or send_sure_final after p"),
    "reserved": plan(
        *graph(a="undo_local_note", b="undo_local_note", c="undo_local_note after a").steps,
        made("a.confirm", "send_sure_final", ["a", "b", "c"]),
        made("b.confirm", "send_sure_final", ["a.confirm", "b"]),
        made("c.confirm", "send_sure_final", ["a.confirm", "c"]),
    ),
    "tied": plan(
        made("a", "undo_local_note", resources=OBJECTS[:1]),
        made("b", "undo_local_note", resources=OBJECTS[:1]),
        made("c", "undo_local_note", ["a"], resources=OBJECTS[1:]),
        made("d", "undo_local_note", ["b"], resources=OBJECTS),
    ),
}


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw any graph of local steps, sound or not."""
    steps: list[PlannedStep] = []
    for number in range(draw(st.integers(1, STEPS_MAX))):
        earlier = [step.step_id for step in steps]
        needs = draw(st.lists(st.sampled_from(earlier), unique=True, max_size=3)) if earlier else []
        resources = draw(st.lists(st.sampled_from(OBJECTS), unique=True, max_size=2))
        steps.append(made(f"s{number}", draw(st.sampled_from(LOCAL)), needs, resources))
    return plan(*steps)


def promised(proof: Proof) -> Iterator[tuple[Row, End]]:
    for row in proof.rows():
        for end in row.ends:
            yield row, end


def assert_agrees(proved: Plan, proof: Proof, row: Row, end: End) -> None:
    saga = drive(proved, row.landed, row.step_id, row.fault, end.way)

    where = f"{row.fault} at {row.step_id} after {row.landed}, {end.way}"
    if end.outcome is Outcome.PARKED:
        assert saga.database.parked == end.parked, where
        assert saga.finished is Outcome.PENDING, where
    else:
        assert saga.finished is end.outcome, where
    assert set(saga.live()) == set(end.live), where
    assert_undone(proved, proof, saga, end, where)


def assert_undone(proved: Plan, proof: Proof, saga: Drive, end: End, where: str) -> None:
    """The groups are exactly the reducer's, but for independent steps on one object: the later one first."""
    undone = [step_id for group in saga.undone for step_id in group]
    assert sorted(undone) == sorted(step_id for group in end.undone for step_id in group), where
    tied = [pair for pair in proof.ties if set(pair) <= set(undone)]
    if not tied:
        assert [set(group) for group in saga.undone] == [set(group) for group in end.undone], where
    place = {step_id: number for number, group in enumerate(saga.undone) for step_id in group}
    for earlier in undone:
        for later in proved.dependents[earlier] & place.keys():
            assert place[later] < place[earlier], where
    for pair in tied:
        first, last = sorted(pair, key=saga.number)
        assert place[last] < place[first], where


@pytest.mark.parametrize("name", PLANS)
def test_every_row_of_the_table_is_what_the_reducer_does(name: str) -> None:
    proof = prove(PLANS[name], CONTRACTS)

    rows = list(promised(proof))

    assert rows
    for row, end in rows:
        assert_agrees(PLANS[name], proof, row, end)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(plans())
def test_every_row_of_any_plan_is_what_the_reducer_does(proved: Plan) -> None:
    proof = prove(proved, CONTRACTS)

    for row, end in promised(proof):
        assert_agrees(proved, proof, row, end)


@settings(max_examples=60, deadline=None)
@given(plans())
def test_the_table_has_every_set_of_steps_that_may_have_landed(proved: Plan) -> None:
    proof = prove(proved, CONTRACTS)

    ids = [step.step_id for step in proved.steps]
    closed = {
        frozenset(some)
        for size in range(len(ids))
        for some in combinations(ids, size)
        if all(need in some for step_id in some for need in proved.by_id[step_id].needs)
    }
    assert proof.complete
    assert closed == {frozenset(proof.order.names(mask)) for mask in proof.prefixes}
    assert len(closed) == len(proof.prefixes)


def test_a_table_that_lies_is_noticed() -> None:
    """The comparison itself: a wrong end, a wrong order and a wrong remainder are each found."""
    proved = PLANS["chain"]
    proof = prove(proved, CONTRACTS)
    row, end = next(
        (row, end)
        for row, end in promised(proof)
        if row.fault is Fault.CANCEL and end.way is Way.BACK_WITH and row.landed == ("a", "b")
    )
    lies = (
        end.model_copy(update={"outcome": Outcome.NOT_APPLIED}),
        end.model_copy(update={"undone": end.undone[::-1]}),
        end.model_copy(update={"live": ("a",)}),
    )

    assert_agrees(proved, proof, row, end)
    for lie in lies:
        with pytest.raises(AssertionError):
            assert_agrees(proved, proof, row, lie)

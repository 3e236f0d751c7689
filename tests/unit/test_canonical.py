"""The canonical form: what means the same has the same key, what does not has another (DESIGN.md section 5)."""

import itertools
import json
import random
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.base import JsonObject, JsonValue
from contracts.intent import Caller
from contracts.proposal import Proposal, propose
from contracts.shape import shape_of
from tests.unit.sample_contracts import CONTRACTS, sample_registry

CALLER = Caller(tenant="bank", principal="customer-7", agent="assistant")
REGISTRY = sample_registry()
patient = settings(deadline=None, max_examples=100)


@dataclass(frozen=True)
class Freeze:
    """A step of a random plan: what it freezes, its memo, whom it needs, from whom it binds amount and memo."""

    amount_cents: int
    memo: str
    needs: frozenset[int] = frozenset()
    source: int | None = None
    memo_source: int | None = None

    @property
    def amount(self) -> tuple[int | None, int | None]:
        """Amount and source; only one of them counts."""
        return (None, self.source) if self.source is not None else (self.amount_cents, None)

    @property
    def words(self) -> tuple[str | None, int | None]:
        """Memo and source; only one of them counts."""
        return (None, self.memo_source) if self.memo_source is not None else (self.memo, None)

    @property
    def direct(self) -> frozenset[int]:
        """Whom it waits for."""
        return self.needs | {source for source in (self.source, self.memo_source) if source is not None}


@st.composite
def plans(draw: st.DrawFn, *, steps_max: int = 6) -> list[Freeze]:
    """Draw a plan with few different amounts, so that many steps are equal."""
    count = draw(st.integers(1, steps_max))
    plan: list[Freeze] = []
    for index in range(count):
        earlier = st.integers(0, index - 1) if index else st.nothing()
        needs = draw(st.frozensets(earlier, max_size=3)) if index else frozenset[int]()
        sources = st.none() | earlier
        plan.append(
            Freeze(draw(st.integers(1, 2)), draw(st.sampled_from(["", "a"])), needs, draw(sources), draw(sources))
        )
    return plan


def post(plan: list[Freeze], names: list[str], order: list[int], **more: JsonValue) -> JsonObject:
    """Post a plan with these step ids, in this order."""
    steps: list[JsonObject] = []
    for index in order:
        step = plan[index]
        amount: Any = step.amount_cents if step.source is None else {"$from": f"{names[step.source]}.held_cents"}
        memo: Any = step.memo if step.memo_source is None else {"$from": f"{names[step.memo_source]}.memo"}
        arguments = {"account_id": "ACC00000001", "amount_cents": amount, "currency": "EUR", "memo": memo}
        needs = [names[need] for need in step.needs]
        steps.append({"step_id": names[index], "tool": "freeze_sample_funds", "arguments": arguments, "needs": needs})
    return {"protocol": 1, "session_id": "chat-42", "steps": steps, **more}


def taken(posted: JsonObject) -> Proposal:
    return propose(posted, CALLER, REGISTRY)


def plainly(plan: list[Freeze]) -> Proposal:
    return taken(post(plan, [f"s{index}" for index in range(len(plan))], list(range(len(plan)))))


@patient
@given(plans(), st.randoms(use_true_random=False))
def test_renaming_and_reordering_steps_changes_nothing(plan: list[Freeze], chance: random.Random) -> None:
    order = list(range(len(plan)))
    chance.shuffle(order)
    names = chance.sample([f"step_{letter}" for letter in "abcdefghijkl"], len(plan))

    one, other = plainly(plan), taken(post(plan, names, order))

    assert one.canonical_steps == other.canonical_steps
    assert (one.intent_key, one.body_digest) == (other.intent_key, other.body_digest)


def closure(plan: list[Freeze]) -> list[frozenset[int]]:
    before: list[frozenset[int]] = []
    for step in plan:
        before.append(step.direct.union(*(before[need] for need in step.direct)))
    return before


def mean_the_same(one: list[Freeze], other: list[Freeze], *, with_memo: bool) -> bool:
    """Try every renaming: the plain definition, without any cleverness."""
    if len(one) != len(other):
        return False
    ones, others = closure(one), closure(other)

    def renamed(argument: tuple[Any, int | None], to: tuple[int, ...]) -> tuple[Any, int | None]:
        value, source = argument
        return value, None if source is None else to[source]

    return any(
        all(
            renamed(a.amount, to) == b.amount
            and (not with_memo or renamed(a.words, to) == b.words)
            and frozenset(to[need] for need in ones[index]) == others[to[index]]
            for index, a in enumerate(one)
            for b in [other[to[index]]]
        )
        for to in itertools.permutations(range(len(one)))
    )


@patient
@given(plans(steps_max=4), plans(steps_max=4))
def test_two_plans_have_one_key_exactly_if_a_renaming_makes_them_equal(one: list[Freeze], other: list[Freeze]) -> None:
    first, second = plainly(one), plainly(other)

    assert (first.intent_key == second.intent_key) is mean_the_same(one, other, with_memo=False)
    assert (first.body_digest == second.body_digest) is mean_the_same(one, other, with_memo=True)


@patient
@given(plans(steps_max=5), st.data())
def test_a_small_change_is_judged_like_the_plain_definition(plan: list[Freeze], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(plan) - 1))
    step = plan[index]
    earlier = st.integers(0, index - 1) if index else st.nothing()
    changed = Freeze(
        data.draw(st.integers(1, 3)),
        data.draw(st.sampled_from([step.memo, "b"])),
        data.draw(st.just(step.needs) | st.frozensets(earlier, max_size=3)) if index else step.needs,
        data.draw(st.just(step.source) | st.none() | earlier) if index else None,
        data.draw(st.just(step.memo_source) | st.none() | earlier) if index else None,
    )
    other = [*plan[:index], changed, *plan[index + 1 :]]

    same_key = plainly(plan).intent_key == plainly(other).intent_key
    same_body = plainly(plan).body_digest == plainly(other).body_digest

    assert same_key is mean_the_same(plan, other, with_memo=False)
    assert same_body is mean_the_same(plan, other, with_memo=True)


@patient
@given(plans())
def test_positions_are_a_topological_order_and_the_form_is_complete(plan: list[Freeze]) -> None:
    proposal = plainly(plan)

    assert sorted(step.position for step in proposal.steps) == list(range(len(plan)))
    by_id = {step.step_id: step for step in proposal.steps}
    for step in proposal.steps:
        assert all(by_id[need].position < step.position for need in step.needs)
        form = proposal.canonical_steps[step.position]
        assert set(form) == {"tool", "arguments", "needs"}
        assert set(form["arguments"]) == {"account_id", "amount_cents", "currency"}


@pytest.mark.parametrize("count", [2, 12, 50])
def test_equal_independent_steps_are_interchangeable(count: int) -> None:
    pairs = [[Freeze(1, ""), Freeze(2, "", frozenset({2 * n}))] for n in range(count // 2)]
    plan = list(itertools.chain(*pairs))
    names = [f"s{index}" for index in range(len(plan))]
    order = list(range(len(plan)))
    random.Random(1).shuffle(order)  # noqa: S311 - a test's shuffle

    assert plainly(plan).intent_key == taken(post(plan, names, order)).intent_key


def test_a_field_that_is_no_identity_orders_equal_steps_only_together_with_what_they_feed() -> None:
    """Found by drawing: ordering each rank by its memo alone gave these one identity and two keys."""
    straight = [Freeze(1, ""), Freeze(1, "a"), Freeze(2, "", frozenset(), 0), Freeze(2, "a", frozenset(), 1)]
    crossed = [Freeze(1, ""), Freeze(1, "a"), Freeze(2, "a", frozenset(), 0), Freeze(2, "", frozenset(), 1)]

    assert plainly(straight).intent_key == plainly(crossed).intent_key
    assert plainly(straight).body_digest != plainly(crossed).body_digest


# ------------------------------------------------------------------------------------------------ what counts, by hand


def single(**arguments: JsonValue) -> JsonObject:
    step = {"step_id": "s", "tool": "debit_sample_funds", "arguments": arguments}
    return {"protocol": 1, "session_id": "chat-42", "steps": [step]}


def noted(**arguments: JsonValue) -> JsonObject:
    about = {"kind": "account", "account_id": "ACC00000001"}
    step = {"step_id": "s", "tool": "write_sample_note", "arguments": {"text": "x", "about": about, **arguments}}
    return {"protocol": 1, "session_id": "chat-42", "steps": [step]}


DEBIT = {"hold_id": "HLD0000000001", "amount_cents": 5, "currency": "EUR"}


def test_the_canonical_form_of_a_small_chain_is_written_down_and_never_changes() -> None:
    plan = [Freeze(5, "m"), Freeze(1, "m", frozenset(), 0)]

    assert plainly(plan).canonical_steps == [
        {
            "tool": "freeze_sample_funds",
            "arguments": {"account_id": "ACC00000001", "amount_cents": 5, "currency": "EUR"},
            "needs": [],
        },
        {
            "tool": "freeze_sample_funds",
            "arguments": {
                "account_id": "ACC00000001",
                "amount_cents": {"$from": [0, "held_cents"]},
                "currency": "EUR",
            },
            "needs": [0],
        },
    ]
    assert plainly(plan).intent_key == "68a246ca193a54fdc2fa726e5becb6dba98416d76890a168fea4cebb92dde451"
    assert plainly(plan).body_digest == "fecae8cd463debb1d61eb8e4a73e3f4f02f07f928c8ee956ddcf01df9c6a2e5d"


def test_a_default_said_aloud_is_the_same_as_left_out() -> None:
    assert taken(single(**DEBIT)).intent_key == taken(single(**DEBIT, memo="")).intent_key
    assert taken(single(**DEBIT)).body_digest == taken(single(**DEBIT, memo="")).body_digest
    assert taken(noted()).intent_key == taken(noted(tags=[], urgent=False, secret="")).intent_key


def test_the_order_of_keys_means_nothing_and_the_order_of_an_array_everything() -> None:
    assert taken(single(**DEBIT)).intent_key == taken(single(**dict(reversed(DEBIT.items())))).intent_key
    assert taken(noted(tags=["a", "b"])).intent_key != taken(noted(tags=["b", "a"])).intent_key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("caf\u00e9", "cafe\u0301"),
        ("a\r\nb", "a\nb"),
        ("a", "a "),
        ("“a”", '"a"'),
        ("\u0410", "A"),
        ("", " "),
        ("ﬁ", "fi"),
    ],
)
def test_texts_that_look_alike_are_two_intents(one: str, other: str) -> None:
    assert taken(noted(text=one)).intent_key != taken(noted(text=other)).intent_key


@pytest.mark.parametrize(
    ("name", "value"), [("hold_id", "HLD0000000002"), ("amount_cents", 6), ("currency", "USD"), ("memo", "m")]
)
def test_changing_any_argument_changes_the_key(name: str, value: JsonValue) -> None:
    assert taken(single(**DEBIT)).intent_key != taken(single(**{**DEBIT, name: value})).intent_key


def test_a_literal_is_not_the_binding_that_would_give_it() -> None:
    literal = [Freeze(5, ""), Freeze(5, "", frozenset({0}))]
    bound = [Freeze(5, ""), Freeze(5, "", frozenset(), 0)]

    assert plainly(literal).intent_key != plainly(bound).intent_key


def test_a_need_that_another_need_implies_means_nothing() -> None:
    short = [Freeze(n + 1, "", frozenset({n - 1}) if n else frozenset()) for n in range(3)]
    long = [*short[:2], Freeze(3, "", frozenset({0, 1}))]

    assert plainly(short).intent_key == plainly(long).intent_key


def test_the_major_of_a_tool_is_no_part_of_the_identity() -> None:
    posted = single(**DEBIT)
    named = {**posted, "steps": [{**posted["steps"][0], "tool": "debit_sample_funds@1"}]}

    assert taken(posted).intent_key == taken(named).intent_key


def test_session_occurrence_attempt_and_caller_are_the_identity_and_the_goal_is_not() -> None:
    posted = single(**DEBIT)
    other = Caller(tenant="bank", principal="customer-8", agent="assistant")
    agent = Caller(tenant="bank", principal="customer-7", agent="other")
    keys = {
        taken(posted).intent_key,
        taken({**posted, "session_id": "chat-43"}).intent_key,
        taken({**posted, "occurrence": 2}).intent_key,
        propose(posted, CALLER, REGISTRY, attempt=2).intent_key,
        propose(posted, other, REGISTRY).intent_key,
        propose(posted, CALLER, REGISTRY, business_reference="INV-1").intent_key,
    }

    assert len(keys) == 6
    assert taken(posted).intent_key == propose(posted, agent, REGISTRY).intent_key
    assert taken(posted).intent_key == taken({**posted, "goal": "Pay."}).intent_key
    assert taken(posted).body_digest == taken({**posted, "goal": "Pay."}).body_digest


def test_a_reference_that_the_model_wrote_is_data_and_not_identity() -> None:
    posted = single(**DEBIT)
    referred = {**posted, "business_reference": "INV-1"}

    assert taken(posted).intent_key == taken(referred).intent_key
    assert taken(posted).body_digest != taken(referred).body_digest


def test_the_filled_in_defaults_are_exactly_what_the_models_fill_in() -> None:
    for contract in CONTRACTS:
        for example in contract.examples:
            read = contract.input.model_validate_json(json.dumps(example.arguments))

            assert read.model_dump(mode="json") == shape_of(contract.input).with_defaults(example.arguments)


def test_a_field_that_is_no_identity_changes_the_body_and_not_the_key() -> None:
    one, other = plainly([Freeze(1, "")]), plainly([Freeze(1, "m")])

    assert one.intent_key == other.intent_key
    assert one.body_digest != other.body_digest

"""What is explored: the smallest plans in which each rule of the reducer can go wrong."""

from contracts.tool import SideEffect
from tests.model.exploration import Case
from tests.support.plans import chain, plan, step

EVERYDAY: tuple[Case, ...] = (
    Case("one step, run ended from outside", chain("a"), ends=1, crashes=False),
    Case("one step, late activities", chain("a"), late=1, refusals=False, undo_refusals=False),
    Case("one gated step", chain("a", gated=["a"]), crashes=False),
    Case("one gated step, run ended", chain("a", gated=["a"]), ends=1, crashes=False, cancels=False, refusals=False),
    Case("chain of two", chain("a", "b"), cancels=False),
    Case("chain of two, run ended from outside", chain("a", "b"), ends=1, cancels=False, crashes=False),
    Case("chain of three", chain("a", "b", "c"), undo_refusals=False),
    Case("late steps", chain("a", "b"), late=1, refusals=False, undo_refusals=False),
    Case("pivot last", chain("a", "b", pivots=["b"]), undo_refusals=False),
    Case("pivot first", chain("a", "b", pivots=["a"])),
    Case("read between", chain("a", "r", "b", reads=["r"]), undo_refusals=False),
    Case(
        "bound to a read",
        plan(
            step("r", effect=SideEffect.READ_ONLY),
            step("a", needs=["r"], arguments={"value": {"$from": "r.value"}}),
        ),
        reads=("x", "y"),
        undo_refusals=False,
    ),
    Case("two in parallel", plan(step("a"), step("b")), crashes=False),
    Case("two in parallel on one object", plan(step("a", resources=["o"]), step("b", resources=["o"])), cancels=False),
)
LONG: tuple[Case, ...] = (
    Case("one step, everything", chain("a"), late=1, ends=1),
    Case("one gated step, everything", chain("a", gated=["a"])),
    Case("one gated step, run ended, everything", chain("a", gated=["a"]), ends=1, crashes=False),
    Case("two gated steps", chain("a", "b", gated=["a", "b"]), undo_refusals=False, crashes=False),
    Case("chain of two", chain("a", "b")),
    Case("chain of two, late activities", chain("a", "b"), late=1, cancels=False),
    Case("gated second step", chain("a", "b", gated=["b"]), refusals=False, undo_refusals=False),
    Case("chain of three, refused compensations", chain("a", "b", "c"), cancels=False),
    Case("pivot last, late activities", chain("a", "b", pivots=["b"]), late=1, undo_refusals=False),
    Case("two in parallel, late activities", plan(step("a"), step("b")), late=1, undo_refusals=False),
    Case(
        "diamond",
        plan(step("a"), step("b", needs=["a"]), step("c", needs=["a"]), step("d", needs=["b", "c"])),
        undo_refusals=False,
    ),
)

"""Which test shows which hard situation, read from the marks: `python -m tests.support.situations` prints the table.

A test says `@pytest.mark.situation(12, "F42")`; one that plays many scenarios names those that are meant by `claims`.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
REAL_SERVERS: Final = ("tests/integration/", "tests/faults/", "tests/replay/")
WITH_THE_BANK: Final = "tests/integration/bank/"

REQUIRED: Final[dict[str, str]] = {
    "1": "A step timed out: it is looked up, goes on or is sent again under its key, or parks; never called failed",
    "2": "A compensation comes before its step: a tombstone, nothing to undo, no business row",
    "3": "A step comes after its compensation: it finds the tombstone and lands nowhere",
    "4": "One key is carried out twice at once: one effect, both get its answer, nobody deadlocks",
    "5": "One key with other arguments: refused, never answered with the old result",
    "6": "The attempt is committed before the call: whoever dies in between, the order is there once",
    "7": "A compensation fails for good: its step parks, independent ones go on, dependent ones wait",
    "8": "A cancel going forward: no new step, the running one is awaited, all that landed is undone",
    "9": "Cancels, crashes and second cancels on the way back change nothing of it",
    "10": "Some of several parallel steps landed: exactly these are undone, once each",
    "11": "After the pivot only forward; nothing before it is ever undone",
    "12": "The world moved before the compensation: nothing is half undone; it parks, or takes what is left",
    "13": "Decisions early, twice, late, after a cancel, about something else: one counts, each is answered",
    "14": "A crash around a spent approval: it is neither lost nor spent twice",
    "15": "A deploy while sagas run: stored and fresh histories replay, and a changed saga does not",
    "16": "The largest intents stay far from the limits of a history; what is over is refused by name",
    "17": "Reset, terminated, forgotten, or an id used again: the tables know the intent, nothing runs twice",
    "18": "Two sagas on one object: one holds it, the other waits or is refused; every end frees it",
    "19": "The reply is lost after the commit: the stored result is told, under the same number",
    "F30": "Timeout, and it landed: found by its key, done once",
    "F31": "Timeout, and it did not land: sent again under the same key",
    "F32": "Timeout, and nobody can say: unknown, then parked; nothing is undone by guess",
    "F33": "429 and 503 with a Retry-After of any kind: waited for within a bound, the same key again",
    "F34": "409, the key is in progress: looked up and waited for, not failed",
    "F35": "422, the key was used for another order: parked, nothing touched",
    "F36": "A refusal: the step is refused, what came before is undone",
    "F38": "A slow drip, an endless body, a bomb, a flood of headers: one deadline, a bound of bytes, looked up",
    "F39": "A redirect, a certificate that nobody vouches for: not followed, the key is told to nobody",
    "F40": "The order lands after its undoing: fenced where it would land, else found and undone",
    "F41": "An undoing of what never ran: done, no money moved, a tombstone",
    "F42": "An undoing is refused: parked for a person, the others still run",
    "F45": "Every message doubled, delayed, overtaken or lost: each cent moves once",
}


@dataclass(frozen=True)
class Shown:
    """A test that shows a situation, all of it or some of its scenarios."""

    situation: str
    path: str
    test: str
    claims: tuple[str, ...]
    strays: tuple[str, ...]
    """Claims that stand nowhere else in its file."""


@cache
def shown() -> tuple[Shown, ...]:
    """List all marks of all tests, file by file."""
    paths = sorted(ROOT.glob("tests/**/test_*.py"))
    return tuple(one for path in paths for one in _marks(path.relative_to(ROOT).as_posix(), path.read_text()))


def _marks(path: str, source: str) -> Iterator[Shown]:
    if "mark.situation(" not in source:
        return
    tree = ast.parse(source, path)
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.situation":
                claims = next((ast.literal_eval(word.value) for word in mark.keywords if word.arg == "claims"), ())
                strays = tuple(claim for claim in claims if texts.count(claim) < 1 + _times(claim, node))
                for argument in mark.args:
                    situation = str(ast.literal_eval(argument))
                    yield Shown(situation, path, node.name, tuple(claims), strays)


def _times(claim: str, node: ast.AST) -> int:
    return sum(isinstance(inner, ast.Constant) and inner.value == claim for inner in ast.walk(node))


def table() -> str:
    """The table of the documentation."""
    rows = [f"| {number} | {what} | {_tests(number)} |" for number, what in REQUIRED.items()]
    return "\n".join(["| | what is required | shown by |", "|---|---|---|", *rows])


def _tests(number: str) -> str:
    cells: dict[str, list[str]] = {}
    for one in shown():
        if one.situation == number:
            said = "".join(f"<br>· {claim}" for claim in one.claims)
            cells.setdefault(one.path.removeprefix("tests/"), []).append(f"`{one.test}`{said}")
    return "<br>".join(f"**{path}**<br>{'<br>'.join(tests)}" for path, tests in cells.items())


if __name__ == "__main__":
    print(table())  # noqa: T201 - to be put into the documentation

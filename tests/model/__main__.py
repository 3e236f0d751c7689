"""Explore every case: `python -m tests.model [--quick] [part of a name]`. Two processes share the work."""

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.model.cases import LONG
from tests.model.exploring import CASES, STATES_MAX, explored

PROCESSES = 2


def main(arguments: list[str]) -> int:
    """Print one line for each case, then the sum; return 1 when a promise is broken."""
    names = [argument for argument in arguments if not argument.startswith("--")]
    every = range(len(LONG) if "--quick" in arguments else 0, len(CASES))
    cases = [number for number in every if all(name in CASES[number].name for name in names)]
    states = edges = violations = 0
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        for case, found, seconds in pool.map(explored, cases):
            states, edges, violations = states + found.states, edges + found.edges, violations + len(found.violations)
            whole = "whole" if found.complete else "part "
            _say(
                f"{whole} {found.states:>7} states {found.edges:>8} edges {seconds:5.1f} s  {case.name}: {case.bounds}"
            )
            for violation in found.violations:
                _say(f"  VIOLATION {violation}")
    _say(f"Bounds: at most 4 steps; {STATES_MAX} states for each case; a case has what its line names.")
    _say(f"MODEL states={states} edges={edges} violations={violations}")
    return 1 if violations else 0


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - its report


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

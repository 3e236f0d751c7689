"""Explore every case to its end, or to a million worlds in all: `python -m tests.model`."""

import sys
import time

from tests.model.cases import EVERYDAY, LONG
from tests.model.exploration import Exploration

STATES_MAX = 1_000_000


def main() -> int:
    """Print one line per case, then the sum; return 1 when a promise is broken."""
    states = edges = violations = 0
    for case in (*EVERYDAY, *LONG):
        started = time.monotonic()
        found = Exploration(case).run(max(1, STATES_MAX - states))
        states, edges, violations = states + found.states, edges + found.edges, violations + len(found.violations)
        whole = "whole" if found.complete else "part"
        seconds = time.monotonic() - started
        print(f"{case.name}: {whole}, {found.states} states, {found.edges} edges, {seconds:.1f} s")  # noqa: T201
        for violation in found.violations:
            print(f"  {violation}")  # noqa: T201
    print(f"MODEL states={states} edges={edges} violations={violations}")  # noqa: T201
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())

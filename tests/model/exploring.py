"""One case explored in a process of its own: named by its number, since plans do not travel between processes."""

import time

from tests.model.cases import EVERYDAY, LONG
from tests.model.exploration import Exploration
from tests.model.worlds import Case, Found

STATES_MAX = 100_000
"""Of one case: a larger one is explored breadth first up to here, and said to be a part."""
CASES = (*LONG, *EVERYDAY)


def explored(number: int) -> tuple[Case, Found, float]:
    """Explore one case of all; tell its processor seconds."""
    started, case = time.process_time(), CASES[number]
    found = Exploration(case).run(STATES_MAX)
    return CASES[number], found, time.process_time() - started

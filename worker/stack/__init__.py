"""The local stack: real servers on one machine, for `make demo`, `make up`, tests and benchmarks."""

from worker.stack.local import LocalStack
from worker.stack.processes import StackError

__all__ = ["LocalStack", "StackError"]

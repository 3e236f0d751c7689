"""`python -m worker.bank`: the same as `backstay bank`."""

import sys

from worker.cli import main

sys.argv.insert(1, "bank")
main()

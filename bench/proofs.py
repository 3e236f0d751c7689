"""How long a proof takes, by CPU time: `python -m bench.proofs`. Nothing is started."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from activities.packs.ledger import PACK
from contracts.intent import Caller
from contracts.proof import prove_steps
from contracts.proposal import propose
from contracts.registry import Registry

if TYPE_CHECKING:
    from contracts.base import JsonObject

ROUNDS = 50
TOOLS = Registry.of([tool.contract for tool in PACK.tools])
CALLER = Caller(tenant="bank", principal="customer", agent="bench")


def pairs(steps: int, *, chained: bool) -> JsonObject:
    """Freeze and debit, again and again: one after another, or each pair beside the others."""
    found: list[JsonObject] = []
    for number in range(0, steps, 2):
        money = {"amount_cents": 100, "currency": "EUR", "reason_code": "PURCHASE"}
        bound = {"hold_id": {"$from": f"s{number}.hold_id"}, "credit_account_id": "S00000001"}
        first: JsonObject = {"arguments": {"account_id": f"A{number:08d}", **money}, "tool": "freeze_account_funds"}
        second: JsonObject = {"arguments": {**bound, **money}, "tool": "debit_frozen_funds"}
        found += [{"step_id": f"s{number}", **first}, {"step_id": f"s{number + 1}", **second}]
        if not chained:
            found[number]["needs"] = []
    return {"protocol": 1, "session_id": "bench", "steps": found}


def main() -> None:
    """Print milliseconds of CPU for each size and shape."""
    for steps in (2, 10, 50):
        for chained in (True, False):
            proposal = propose(pairs(steps, chained=chained), CALLER, TOOLS)
            taken: list[float] = []
            for _ in range(ROUNDS):
                begun = time.thread_time()
                proof = prove_steps(proposal.intent_id, proposal.steps, TOOLS)
                proof.digest  # noqa: B018 - worked out when it is first asked for
                taken.append((time.thread_time() - begun) * 1_000)
            shape = "chain" if chained else "pairs side by side"
            least, middle = min(taken), statistics.median(taken)
            sizes = f"{len(proposal.proof.prefixes)} prefixes, {len(proposal.proof.text)} bytes"
            print(f"{steps} steps, {shape}: {least:.2f} ms, median {middle:.2f} ms; {sizes}")


if __name__ == "__main__":
    main()

"""The raced cancel, with the engine's second look taken away: the tests of this folder are able to fail.

Local steps that committed can be unknown to the workflow: its worker died before the task ended, and the cancel that
came meanwhile is delivered first. What the workflow remembers is then not what landed.
"""

from tests.faults.support import hooked_worker, neutralised
from tests.faults.support.books import check_answer, check_books, check_purchase
from tests.faults.support.intents import AMOUNT_CENTS, OPENED_CENTS, SETTLE, purchase
from tests.faults.support.world import Posted, World


async def raced(world: World, without: str = "") -> tuple[Posted, str]:
    """Let both steps land, the worker die before anybody knows, and a cancel overtake it all."""
    account = world.account()
    posting = world.posting(purchase(account))
    rule = world.arm(SETTLE, "begin", "kill", posting)
    extra = {hooked_worker.NEUTRALISED: without} if without else {}
    worker = await world.start_worker(extra=extra)
    posted = await world.post(posting)
    await posted.until_fired(rule)
    await worker.died()
    assert posted.effects() == {"freeze": "LANDED", "debit": "LANDED"}
    await posted.cancel("signal")
    await world.start_worker(extra=extra)
    return posted, account


async def test_a_raced_cancel_loses_nothing(world: World) -> None:
    posted, account = await raced(world)

    envelope = await posted.answer()

    assert check_answer(posted, envelope) == "COMPENSATED"
    assert (envelope.data or {})["cause"] == "cancelled"
    assert posted.compensated() == ["debit", "freeze"]
    check_purchase(posted, account, "COMPENSATED", AMOUNT_CENTS)


async def test_a_saga_that_undoes_only_what_it_remembers_is_caught_by_settling(world: World) -> None:
    posted, account = await raced(world, neutralised.MEMORY)

    await posted.until_parked("MISMATCH")

    assert posted.effects() == {"freeze": "LANDED", "debit": "LANDED"}
    assert world.standing(account) == (OPENED_CENTS - AMOUNT_CENTS, 0)


async def test_a_saga_that_also_settles_by_memory_loses_the_money(open_world: World) -> None:
    posted, account = await raced(open_world, f"{neutralised.MEMORY},{neutralised.TRUST}")

    envelope = await posted.answer()

    assert (envelope.data or {})["outcome"] == "NOT_APPLIED", "it says that nothing happened"
    assert open_world.standing(account) == (OPENED_CENTS - AMOUNT_CENTS, 0), "and the customer has paid"
    for judge in (
        lambda: check_books(open_world),
        lambda: check_answer(posted, envelope),
        lambda: check_purchase(posted, account, "NOT_APPLIED", AMOUNT_CENTS),
    ):
        try:
            judge()
        except AssertionError:
            continue
        raise AssertionError(f"{judge} did not see it")

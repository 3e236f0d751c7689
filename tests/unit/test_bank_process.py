"""The bank as a process: what it answers, what its switches do, and what is left of it after SIGKILL."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.bankhouse import BankHouse, open_bank

ORDER = {"account_id": "B00000001", "payee_id": "P00000001", "amount_cents": 500, "currency": "EUR"}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Generator[BankHouse]:
    with open_bank(tmp_path_factory.mktemp("bank")) as house:
        yield house


@pytest.fixture
def own_house(tmp_path: Path) -> Generator[BankHouse]:
    with open_bank(tmp_path) as house:
        yield house


@pytest.fixture
async def wire(house: BankHouse) -> AsyncGenerator[httpx2.AsyncClient]:
    async with client_of(house) as client:
        yield client


def client_of(house: BankHouse) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=house.url, trust_env=False, timeout=10)


async def pay(wire: httpx2.AsyncClient, key: str, **changes: object) -> httpx2.Response:
    return await wire.post("/payouts", json=ORDER | changes, headers={"Idempotency-Key": key})


async def status_of(wire: httpx2.AsyncClient, key: str) -> str:
    answer: dict[str, Any] = (await wire.get("/entries", params={"key": key})).json()
    return str(answer["status"])


async def until_landed(wire: httpx2.AsyncClient, key: str) -> None:
    async with asyncio.timeout(10):
        while await status_of(wire, key) != "LANDED":  # noqa: ASYNC110 - the bank tells nobody by itself
            await asyncio.sleep(0.01)


def landed(house: BankHouse, key: str) -> list[int]:
    return [entry["moved_cents"] for entry in house.entries() if (entry["event"], entry["key"]) == ("LANDED", key)]


async def test_a_repeat_is_answered_200_with_the_same_body_and_marked(
    wire: httpx2.AsyncClient, house: BankHouse
) -> None:
    first, again = await pay(wire, "repeat"), await pay(wire, "repeat")

    assert (first.status_code, again.status_code) == (201, 200)
    assert again.content == first.content
    assert (first.headers.get("idempotent-replayed"), again.headers["idempotent-replayed"]) == (None, "true")
    assert landed(house, "repeat") == [500]


async def test_equal_orders_at_the_same_moment_land_once(wire: httpx2.AsyncClient, house: BankHouse) -> None:
    answers = await asyncio.gather(*(pay(wire, "race") for _ in range(20)))

    assert sorted({answer.status_code for answer in answers}) == [200, 201]
    assert landed(house, "race") == [500]


@pytest.mark.parametrize(
    "changes",
    [{"amount_cents": 0}, {"amount_cents": "5"}, {"amount_cents": 1.0}, {"payee_id": "Anna"}, {"more": 1}],
)
async def test_an_order_that_is_not_exact_is_refused(
    wire: httpx2.AsyncClient, house: BankHouse, changes: dict[str, object]
) -> None:
    answer = await pay(wire, "inexact", **changes)

    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID")
    assert landed(house, "inexact") == []


async def test_an_order_without_a_key_is_refused(wire: httpx2.AsyncClient) -> None:
    answer = await wire.post("/payouts", json=ORDER)

    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID")


async def test_slow_lands_even_when_the_caller_has_gone(wire: httpx2.AsyncClient, house: BankHouse) -> None:
    house.switch("slow", milliseconds=200)

    with pytest.raises(httpx2.ReadTimeout):
        await wire.post("/payouts", json=ORDER, headers={"Idempotency-Key": "slow"}, timeout=0.05)

    assert await status_of(wire, "slow") == "PENDING"
    assert (await pay(wire, "slow")).status_code == 409
    await until_landed(wire, "slow")
    assert landed(house, "slow") == [500]


async def test_drop_reply_lands_and_cuts_the_answer(wire: httpx2.AsyncClient, house: BankHouse) -> None:
    house.switch("drop_reply")

    with pytest.raises(httpx2.RemoteProtocolError, match="without sending complete"):
        await pay(wire, "drop-reply")

    assert landed(house, "drop-reply") == [500]


async def test_drop_request_does_nothing_and_hangs_up(wire: httpx2.AsyncClient, house: BankHouse) -> None:
    house.switch("drop_request")

    with pytest.raises(httpx2.TransportError):
        await pay(wire, "drop-request")

    assert landed(house, "drop-request") == []


async def test_lands_late_is_accepted_first_and_lands_by_itself(wire: httpx2.AsyncClient, house: BankHouse) -> None:
    house.switch("lands_late", milliseconds=200)

    answer = await pay(wire, "lands-late")

    assert (answer.status_code, answer.json()["status"]) == (202, "PENDING")
    assert landed(house, "lands-late") == []
    await until_landed(wire, "lands-late")
    assert landed(house, "lands-late") == [500]


async def test_arrives_late_is_unknown_until_it_lands(wire: httpx2.AsyncClient, house: BankHouse) -> None:
    house.switch("arrives_late", milliseconds=200)

    with pytest.raises(httpx2.TransportError):
        await pay(wire, "arrives-late")

    assert await status_of(wire, "arrives-late") == "ABSENT"
    await until_landed(wire, "arrives-late")
    assert landed(house, "arrives-late") == [500]


@pytest.mark.parametrize("name", ["slow", "lands_late", "arrives_late"])
async def test_a_fence_wins_over_an_order_on_its_way(wire: httpx2.AsyncClient, house: BankHouse, name: str) -> None:
    house.switch(name, milliseconds=1_000)
    order = asyncio.create_task(pay(wire, f"fenced-{name}"))
    async with asyncio.timeout(10):
        while house.switches():  # noqa: ASYNC110 - spent as soon as the order was received
            await asyncio.sleep(0.01)

    answer = (await wire.post("/keys/cancel", json={"key": f"fenced-{name}"})).json()
    house.switch(name, milliseconds=1_000)
    await asyncio.gather(order, pay(wire, f"behind-{name}"), return_exceptions=True)
    await until_landed(wire, f"behind-{name}")  # so whatever was on its way before has come too

    assert (answer["status"], answer["fenced"]) == ("ABSENT", True)
    assert (await pay(wire, f"fenced-{name}")).status_code == 410
    assert landed(house, f"fenced-{name}") == []


@pytest.mark.parametrize(("name", "status"), [("too_many", 429), ("unavailable", 503)])
async def test_refusals_of_load_do_nothing_and_say_when_to_come_again(
    wire: httpx2.AsyncClient, house: BankHouse, name: str, status: int
) -> None:
    house.switch(name, retry_after="7")

    answer = await pay(wire, name)

    assert (answer.status_code, answer.headers["retry-after"]) == (status, "7")
    assert landed(house, name) == []


async def test_conflict_says_in_progress_and_does_nothing(wire: httpx2.AsyncClient, house: BankHouse) -> None:
    house.switch("conflict")

    answer = await pay(wire, "conflict")

    assert (answer.status_code, answer.json()["code"]) == (409, "IN_PROGRESS")
    assert landed(house, "conflict") == []


async def test_garbage_lands_and_answers_what_is_no_json(wire: httpx2.AsyncClient, house: BankHouse) -> None:
    house.switch("garbage")

    answer = await pay(wire, "garbage")

    assert answer.status_code == 200
    with pytest.raises(ValueError, match="delimiter"):
        answer.json()
    assert landed(house, "garbage") == [500]


async def test_wrong_amount_lands_right_and_echoes_one_cent_more(wire: httpx2.AsyncClient, house: BankHouse) -> None:
    house.switch("wrong_amount")

    answer = await pay(wire, "wrong-amount")

    assert answer.json()["amount_cents"] == 501
    assert landed(house, "wrong-amount") == [500]


async def test_lookup_down_hangs_up_at_lookups_alone(wire: httpx2.AsyncClient, house: BankHouse) -> None:
    house.switch("lookup_down")

    answer = await pay(wire, "lookup-down")

    assert answer.status_code == 201
    with pytest.raises(httpx2.TransportError):
        await status_of(wire, "lookup-down")
    assert await status_of(wire, "lookup-down") == "LANDED"


async def test_a_switch_is_for_the_next_n_requests_or_until_it_is_off(
    wire: httpx2.AsyncClient, house: BankHouse
) -> None:
    house.switch("unavailable", times=2)
    counted = [(await pay(wire, "counted")).status_code for _ in range(3)]
    house.switch("unavailable", times=None)
    lasting = [(await pay(wire, "lasting")).status_code for _ in range(3)]
    house.switch("unavailable", times=0)

    assert counted == [503, 503, 201]
    assert lasting == [503, 503, 503]
    assert (await pay(wire, "lasting")).status_code == 201


async def test_a_switch_can_be_for_one_door(wire: httpx2.AsyncClient, house: BankHouse) -> None:
    house.switch("unavailable", times=1, on=["refunds"])

    assert (await pay(wire, "one-door")).status_code == 201
    refund = {"charge_id": "BK0000000001", "currency": "EUR"}
    answer = await wire.post("/refunds", json=refund, headers={"Idempotency-Key": "one-door-r"})
    assert answer.status_code == 503


async def test_a_killed_bank_comes_up_with_the_same_book(own_house: BankHouse) -> None:
    async with client_of(own_house) as wire:
        answers = [await pay(wire, f"k{number}") for number in range(20)]
        await wire.post("/keys/cancel", json={"key": "fenced"})
    told = own_house.entries()

    own_house.kill()
    own_house.start_again()

    async with client_of(own_house) as wire:
        again = [await pay(wire, f"k{number}") for number in range(20)]
        refused = await pay(wire, "fenced")
    assert own_house.entries() == told
    assert [answer.content for answer in again] == [answer.content for answer in answers]
    assert refused.status_code == 410


async def test_a_bank_killed_under_load_has_every_movement_that_it_confirmed(own_house: BankHouse) -> None:
    confirmed: list[str] = []

    async def keep_paying(lane: int) -> None:
        async with client_of(own_house) as wire:
            number = 0
            while True:
                key = f"{lane}-{number}"
                if (await pay(wire, key)).status_code == 201:
                    confirmed.append(key)
                number += 1

    lanes = [asyncio.create_task(keep_paying(lane)) for lane in range(4)]
    async with asyncio.timeout(20):
        while len(confirmed) < 40:  # noqa: ASYNC110 - the lanes tell nobody
            await asyncio.sleep(0.01)
    own_house.kill()
    await asyncio.gather(*lanes, return_exceptions=True)
    own_house.start_again()

    booked = [entry["key"] for entry in own_house.entries()]
    assert set(confirmed) <= set(booked)
    assert len(booked) == len(set(booked))


async def test_what_was_accepted_before_a_kill_lands_after_it_once(own_house: BankHouse) -> None:
    own_house.switch("lands_late", milliseconds=300)
    async with client_of(own_house) as wire:
        await pay(wire, "late")
    own_house.kill()
    own_house.start_again()

    async with client_of(own_house) as wire:
        await until_landed(wire, "late")
    assert landed(own_house, "late") == [500]


async def test_a_second_bank_on_the_same_book_does_not_start(own_house: BankHouse) -> None:
    second = await asyncio.create_subprocess_exec(
        *own_house.command(0), stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    _, said = await second.communicate()

    assert second.returncode == 2
    assert b"in use by another bank" in said

"""The bank's client: whatever comes back is understood whole, or told as unknown, or as not sent."""

import asyncio
import gzip
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from activities.packs.bank.client import BODY_BYTES_MAX, Bank, Kind, retry_after_seconds
from activities.tool import NotSentError, OutcomeUnknownError
from contracts.errors import SagaError
from contracts.reasons import Reason
from worker.stack.temporal import free_port

KEY = "abcdefghijklmnopqrstuvwxyz"
ORDER = {"account_id": "B00000001", "payee_id": "P00000001", "amount_cents": 500, "currency": "EUR"}
MOVEMENT = {
    "movement_id": "BK0000000001",
    "kind": "PAYOUT",
    "key": KEY,
    "party": "P00000001",
    "account_id": "B00000001",
    "amount_cents": 500,
    "currency": "EUR",
    "reference": "",
    "landed_at": "2026-11-30T12:00:00Z",
}
KEY_ANSWER = {
    "key": KEY,
    "status": "LANDED",
    "fenced": False,
    "movements": [MOVEMENT],
    "refunded_cents": 0,
    "may_still_land_until": None,
}
TIMEOUT_SECONDS = 0.5
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def impostor(answer: Answer, timeout_seconds: float = 30.0) -> AsyncGenerator[Bank]:
    """Something at the bank's address that reads one order and answers as it likes; only a test of time is short."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), b":0")
            await reader.readexactly(int(length.split(b":")[1]))
            await answer(reader, writer)
        except ConnectionError:
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield Bank(f"http://127.0.0.1:{port}", timeout_seconds=timeout_seconds)
        server.close()


def http(status: int, body: object, *headers: str) -> Answer:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = "\r\n".join([f"HTTP/1.1 {status} Said", f"Content-Length: {len(content)}", *headers, "", ""]).encode()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head + content)
        await writer.drain()

    return answer


async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


async def pour(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        await writer.drain()


async def flood_headers(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 201 Created\r\n")
    while True:
        writer.write(b"X-More: " + b"x" * 8_000 + b"\r\n")
        await writer.drain()


async def say_nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()
    await asyncio.sleep(0)


async def no_http(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-bank\r\n\r\n")
    await writer.drain()


def changed(answer: dict[str, Any], **changes: object) -> dict[str, Any]:
    return answer | changes


async def order(bank: Bank) -> None:
    await bank.order(Kind.PAYOUT, KEY, ORDER)


async def test_a_whole_answer_is_a_movement() -> None:
    async with impostor(http(201, MOVEMENT)) as bank:
        movement = await bank.order(Kind.PAYOUT, KEY, ORDER)

    assert (movement.movement_id, movement.amount_cents) == ("BK0000000001", 500)


async def test_a_field_that_the_bank_added_later_is_left_aside() -> None:
    async with impostor(http(201, changed(MOVEMENT, mood="good"))) as bank:
        await order(bank)


@pytest.mark.parametrize(
    "answer",
    [
        drip,
        pour,
        flood_headers,
        say_nothing,
        hang_up,
        no_http,
        http(201, gzip.compress(b" " * 10_000_000), "Content-Encoding: gzip"),
        http(201, b" " * (BODY_BYTES_MAX + 1)),
        http(201, b""),
        http(201, b"[]"),
        http(201, b'{"movement_id": 7'),
        http(201, b"\xff\xfe"),
        http(202, KEY_ANSWER),
        http(202, MOVEMENT),
        http(204, b""),
        http(302, b"", "Location: http://127.0.0.1:1/"),
        http(307, b"", "Location: http://127.0.0.1:1/"),
        http(201, changed(MOVEMENT, key="another")),
        http(201, changed(MOVEMENT, kind="CHARGE")),
        http(201, changed(MOVEMENT, amount_cents="500")),
        http(201, changed(MOVEMENT, amount_cents=500.0)),
        http(201, changed(MOVEMENT, amount_cents=0)),
        http(201, changed(MOVEMENT, amount_cents=True)),
        http(201, changed(MOVEMENT, movement_id="../etc")),
        http(201, changed(MOVEMENT, landed_at="yesterday")),
        http(409, {"code": "IN_PROGRESS", "message": "wait"}),
        http(500, {"code": "BROKEN", "message": "no"}),
        http(502, b"<html>"),
        http(503, b"<html>a proxy says so</html>"),
        http(503, {"code": "DECLINED", "message": "no"}),
        http(402, b"Payment Required"),
        http(402, {"code": "SOMETHING_NEW", "message": "no"}),
        http(404, {"detail": "Not Found"}),
        http(418, {"code": "DECLINED", "message": "no"}),
    ],
)
async def test_everything_else_after_sending_leaves_the_outcome_unknown(answer: Answer) -> None:
    began = time.monotonic()

    async with impostor(answer, TIMEOUT_SECONDS) as bank:
        with pytest.raises(OutcomeUnknownError):
            await order(bank)

    assert time.monotonic() - began < 10 * TIMEOUT_SECONDS


@pytest.mark.parametrize("answer", [pour, http(201, b" " * (BODY_BYTES_MAX + 1))])
async def test_no_more_of_an_answer_is_read_than_the_bound(answer: Answer) -> None:
    async with impostor(answer) as bank:
        with pytest.raises(OutcomeUnknownError, match=f"longer than {BODY_BYTES_MAX} bytes"):
            await order(bank)


async def test_a_refused_connection_has_carried_nothing() -> None:
    with pytest.raises(NotSentError):
        await order(Bank(f"http://127.0.0.1:{free_port()}"))


async def test_a_name_that_leads_nowhere_has_carried_nothing() -> None:
    with pytest.raises(NotSentError):
        await order(Bank("http://bank.invalid"))


@pytest.mark.parametrize(("status", "code"), [(429, "TOO_MANY"), (503, "UNAVAILABLE")])
async def test_what_the_bank_promises_not_to_have_done_was_not_sent(status: int, code: str) -> None:
    async with impostor(http(status, {"code": code, "message": "later"}, "Retry-After: 7")) as bank:
        with pytest.raises(NotSentError) as caught:
            await order(bank)

    assert caught.value.info.details["retry_after_seconds"] == 7


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (400, "INVALID", Reason.ARGUMENTS_INVALID),
        (402, "DECLINED", Reason.WRONG_STATE),
        (402, "NOTHING_LEFT", Reason.FUNDS_INSUFFICIENT),
        (404, "NOT_FOUND", Reason.OBJECT_NOT_FOUND),
        (410, "KEY_FENCED", Reason.SUPERSEDED),
        (422, "KEY_REUSED", Reason.KEY_REUSED),
    ],
)
async def test_a_refusal_in_the_banks_own_words_is_final(status: int, code: str, reason: Reason) -> None:
    async with impostor(http(status, {"code": code, "message": "no"})) as bank:
        with pytest.raises(SagaError) as caught:
            await order(bank)

    assert caught.value.reason is reason
    assert not caught.value.reason.is_transient


async def test_a_redirect_is_not_followed_and_the_key_is_not_told_to_another_host() -> None:
    told: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told.append(await reader.read(100))
        writer.close()

    elsewhere = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with elsewhere:
        port = elsewhere.sockets[0].getsockname()[1]
        async with impostor(http(307, b"", f"Location: http://127.0.0.1:{port}/")) as bank:
            with pytest.raises(OutcomeUnknownError):
                await order(bank)
        elsewhere.close()

    assert told == []


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{free_port()}")

    async with impostor(http(201, MOVEMENT)) as bank:
        await order(bank)


async def test_an_unknown_answers_text_never_carries_the_answer() -> None:
    async with impostor(http(201, changed(MOVEMENT, amount_cents="secret=hunter2"))) as bank:
        with pytest.raises(OutcomeUnknownError) as caught:
            await order(bank)

    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in caught.value.info.model_dump_json()
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "answer",
    [
        changed(KEY_ANSWER, key="another"),
        changed(KEY_ANSWER, movements=[changed(MOVEMENT, key="another")]),
        changed(KEY_ANSWER, status="MAYBE"),
        changed(KEY_ANSWER, fenced="no"),
        changed(KEY_ANSWER, movements=[MOVEMENT] * 101),
    ],
)
async def test_a_lookup_that_is_not_about_the_key_is_unknown(answer: dict[str, Any]) -> None:
    async with impostor(http(200, answer)) as bank:
        with pytest.raises(OutcomeUnknownError):
            await bank.look_up(KEY)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("7", 7.0),
        ("-5", -5.0),
        ("1000000000", 1e9),
        ("1e9", None),
        ("１", None),  # noqa: RUF001 - a digit that is none of ASCII
        ("soon", None),
        ("9" * 65, None),
        ("Mon, 30 Nov 2026 12:00:30 GMT", 30.0),
        ("Mon, 30 Nov 2026 11:59:30 GMT", -30.0),
        ("Mon, 99 Nov 2026 12:00:30 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_or_nothing(value: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(value, "Mon, 30 Nov 2026 12:00:00 GMT") == seconds

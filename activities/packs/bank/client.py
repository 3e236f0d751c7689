"""Speaking with the bank: every answer is either understood whole, or told as what it is: unknown, or not sent.

One connection per call: who could not connect has sent nothing, and no idle connection dies under an order. Neither
redirects nor proxies are followed, compressed answers are not asked for and not taken, and the whole call has one
deadline and a bound of bytes.
"""

import asyncio
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from functools import cache
from http import HTTPStatus
from typing import Annotated, Final, NoReturn, TypeVar

import httpx2
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from activities.tool import NotSentError, OutcomeUnknownError
from contracts.base import JsonObject
from contracts.errors import SagaError
from contracts.reasons import Reason

TIMEOUT_SECONDS: Final = 4.0
"""Below the engine's own timeout of a call: what happened is told, not cut off."""
BODY_BYTES_MAX: Final = 65_536
RETRY_AFTER_CHARACTERS_MAX: Final = 64

Answer = TypeVar("Answer", bound=BaseModel)
Text = Annotated[str, Field(max_length=200)]
Cents = Annotated[int, Field(strict=True, ge=0, le=2**53 - 1)]


class BankAnswer(BaseModel):
    """What the bank says is taken strictly; fields that it may add later are left aside."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Kind(StrEnum):
    """What an order moves."""

    PAYOUT = "PAYOUT"
    CHARGE = "CHARGE"
    REFUND = "REFUND"

    @property
    def path(self) -> str:
        """Where such orders are posted."""
        return f"/{self.value.lower()}s"


class Movement(BankAnswer):
    """Money that moved."""

    movement_id: Annotated[str, Field(pattern=r"^BK[0-9]{10}$")]
    kind: Kind
    key: Text
    party: Text
    account_id: Text | None = None
    amount_cents: Annotated[int, Field(strict=True, gt=0, le=2**53 - 1)]
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
    landed_at: AwareDatetime


class KeyStatus(StrEnum):
    """What became of a key."""

    ABSENT = "ABSENT"
    PENDING = "PENDING"
    LANDED = "LANDED"
    DECLINED = "DECLINED"


class KeyAnswer(BankAnswer):
    """All that the bank knows of a key."""

    key: Text
    status: KeyStatus
    fenced: Annotated[bool, Field(strict=True)]
    movements: Annotated[tuple[Movement, ...], Field(max_length=100)]
    refunded_cents: Cents
    may_still_land_until: AwareDatetime | None


class Refusal(BankAnswer):
    """The bank says that it did not do it."""

    code: Annotated[str, Field(pattern=r"^[A-Z_]{1,40}$")]
    message: Annotated[str, Field(max_length=2_000)]


_NOT_DONE: Final = {
    (HTTPStatus.TOO_MANY_REQUESTS, "TOO_MANY"),
    (HTTPStatus.SERVICE_UNAVAILABLE, "UNAVAILABLE"),
}
"""Of these the bank promises that nothing was done. The same status with other words is somebody else's: unknown."""

_REFUSED: Final = {
    (HTTPStatus.BAD_REQUEST, "INVALID"): Reason.ARGUMENTS_INVALID,
    (HTTPStatus.PAYMENT_REQUIRED, "DECLINED"): Reason.WRONG_STATE,
    (HTTPStatus.PAYMENT_REQUIRED, "NOTHING_LEFT"): Reason.FUNDS_INSUFFICIENT,
    (HTTPStatus.NOT_FOUND, "NOT_FOUND"): Reason.OBJECT_NOT_FOUND,
    (HTTPStatus.GONE, "KEY_FENCED"): Reason.SUPERSEDED,
    (HTTPStatus.UNPROCESSABLE_ENTITY, "KEY_REUSED"): Reason.KEY_REUSED,
}
"""Said for good. All but KEY_REUSED mean that nothing moved, and that nothing will under this key."""


class Bank:
    """The bank at one address."""

    def __init__(self, url: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Speak to `url`; nothing is connected before the first call."""
        self._url = url.rstrip("/")
        self._timeout_seconds = timeout_seconds

    async def order(self, kind: Kind, key: str, body: JsonObject) -> Movement:
        """Have money moved under `key`, once. Raises SagaError for good, NotSentError, OutcomeUnknownError."""
        status, movement = await self._call("POST", kind.path, Movement, body=body, headers={"Idempotency-Key": key})
        if status not in (HTTPStatus.OK, HTTPStatus.CREATED) or movement.key != key or movement.kind is not kind:
            raise OutcomeUnknownError(
                f"The bank answered {status} about another order than {key}; it is looked up.",
                details={"status_code": status, "answered_key": movement.key},
            )
        return movement

    async def look_up(self, key: str) -> KeyAnswer:
        """Ask what became of a key. Raises OutcomeUnknownError, NotSentError, SagaError."""
        _, answer = await self._call("GET", "/entries", KeyAnswer, params={"key": key})
        return _about(key, answer)

    async def fence(self, key: str) -> KeyAnswer:
        """Forbid a key for ever, and learn what had become of it; safe again. Raises as `look_up`."""
        _, answer = await self._call("POST", "/keys/cancel", KeyAnswer, body={"key": key})
        return _about(key, answer)

    async def _call(
        self,
        method: str,
        path: str,
        model: type[Answer],
        *,
        body: JsonObject | None = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> tuple[int, Answer]:
        given = {"Accept": "application/json", "Accept-Encoding": "identity", "Connection": "close", **(headers or {})}
        try:
            async with (
                asyncio.timeout(self._timeout_seconds),
                httpx2.AsyncClient(verify=_trust(), trust_env=False, timeout=self._timeout_seconds) as client,
                client.stream(method, f"{self._url}{path}", json=body, headers=given, params=params) as response,
            ):
                content = await _bounded(response)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise NotSentError(f"The bank did not take the connection ({type(error).__name__}).") from error
        except TimeoutError as error:
            raise OutcomeUnknownError(
                f"The bank did not answer in {self._timeout_seconds:g} seconds; it is looked up.",
                details={"timeout_seconds": self._timeout_seconds},
            ) from error
        except httpx2.HTTPError as error:
            raise OutcomeUnknownError(
                f"The connection to the bank broke ({type(error).__name__}); it is looked up.",
                details={"error": type(error).__name__},
            ) from error
        if response.status_code >= HTTPStatus.MULTIPLE_CHOICES:
            _refuse(response, content)
        return response.status_code, _read(model, content, response.status_code)


def _about(key: str, answer: KeyAnswer) -> KeyAnswer:
    if answer.key != key or any(movement.key != key for movement in answer.movements):
        raise OutcomeUnknownError(
            f"Asked about {key}, the bank told of {answer.key}.", details={"answered_key": answer.key}
        )
    return answer


async def _bounded(response: httpx2.Response) -> bytes:
    if response.headers.get("content-encoding", "identity") != "identity":
        raise OutcomeUnknownError("The bank's answer is compressed, which was not asked for; it is not unpacked.")
    content = bytearray()
    async for piece in response.aiter_raw():
        content += piece
        if len(content) > BODY_BYTES_MAX:
            raise OutcomeUnknownError(
                f"The bank's answer is longer than {BODY_BYTES_MAX} bytes; the rest is not read.",
                details={"body_bytes_max": BODY_BYTES_MAX},
            )
    return bytes(content)


def _read(model: type[Answer], content: bytes, status: int) -> Answer:
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise OutcomeUnknownError(
            f"The bank answered {status} with what is no {model.__name__}; it is looked up.",
            details={
                "status_code": status,
                "wrong_fields": [".".join(map(str, e["loc"])) for e in error.errors()][:10],
            },
        ) from None  # the error's text would carry the answer


def _refuse(response: httpx2.Response, content: bytes) -> NoReturn:
    status = response.status_code
    refusal = _read(Refusal, content, status)
    details = {"status_code": status, "bank_code": refusal.code}
    if (status, refusal.code) in _NOT_DONE:
        wait = retry_after_seconds(response.headers.get("retry-after"), response.headers.get("date"))
        raise NotSentError(f"The bank did nothing ({status} {refusal.code}).", retry_after_seconds=wait)
    reason = _REFUSED.get((HTTPStatus(status), refusal.code)) if status in set(HTTPStatus) else None
    if reason is None:
        raise OutcomeUnknownError(f"The bank answered {status} {refusal.code}; it is looked up.", details=details)
    raise SagaError(reason, f"The bank refused: {refusal.message[:200]}", details=details)


def retry_after_seconds(value: str | None, date: str | None = None) -> float | None:
    """Read a Retry-After, seconds or a date (against the answer's own `date` if it has one); None when it is neither.

    The caller bounds it: it may be negative or absurd.
    """
    if value is None or len(value) > RETRY_AFTER_CHARACTERS_MAX:
        return None
    if value.removeprefix("-").isdecimal() and value.isascii():
        return float(value)
    try:
        until = parsedate_to_datetime(value)
        since = parsedate_to_datetime(date) if date else datetime.now(UTC)
        return (until - since).total_seconds()
    except (TypeError, ValueError):
        return None


@cache
def _trust() -> ssl.SSLContext:
    """Read the certificates once: it takes a tenth of a second."""
    return ssl.create_default_context()

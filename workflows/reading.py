"""Reads what came raw: the input of the workflow, and the updates.

Left to the SDK, what cannot be decoded would fail the workflow task for ever or be refused without a reason, of two
equal keys the last would win, and NaN would become null. What a validator refuses leaves nothing in the history.
"""

from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from contracts.base import JsonObject, as_object
from contracts.errors import Phase, SagaError
from contracts.problems import field_problems
from contracts.reasons import Reason
from contracts.shape import shape_of
from contracts.wire import parse_object, refusal

T = TypeVar("T", bound=BaseModel)

NO_INPUT: Final = RawValue(Payload())
_ENCODING: Final = b"json/plain"


def read(request: RawValue) -> JsonObject | None:
    """Decode the workflow's input; anything but a JSON object (RFC 8259) is as good as none, and admission says so."""
    if request.payload.metadata.get("encoding") != _ENCODING:
        return None
    try:
        return as_object(from_json(request.payload.data, allow_inf_nan=False))
    except ValueError:
        return None


def heard(body: RawValue, model: type[T]) -> T:
    """Read an update that its validator let in; as histories from before `check_body` were read, too."""
    return model.model_validate_json(body.payload.data)


def check_body(body: RawValue, model: type[BaseModel], bytes_max: int) -> None:
    """Refuse what is too large, or not one such message to every reader. Raises ApplicationError, typed by reason."""
    try:
        _check(body.payload, model, bytes_max)
    except SagaError as error:
        raise ApplicationError(
            str(error), error.info.model_dump(mode="json"), type=error.reason.value, non_retryable=True
        ) from None


def _check(payload: Payload, model: type[BaseModel], bytes_max: int) -> None:
    if len(payload.data) > bytes_max:
        raise SagaError(
            Reason.BODY_TOO_LARGE,
            f"The message has {len(payload.data)} bytes; at most {bytes_max} are taken.",
            details={"size_bytes": len(payload.data), "size_bytes_max": bytes_max},
            phase=Phase.VALIDATION,
        )
    if payload.metadata.get("encoding") != _ENCODING:
        raise SagaError(Reason.BODY_MALFORMED, f"Send one JSON object: {model.__name__}.", phase=Phase.VALIDATION)
    value = parse_object(payload.data)
    try:
        model.model_validate_json(payload.data)
    except ValidationError as error:
        raise refusal(Reason.ARGUMENTS_INVALID, field_problems(error, shape_of(model), value)) from None

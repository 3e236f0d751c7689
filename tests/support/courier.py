"""A courier somewhere else: a server with a book of its own, and the pack of tools that call it.

The server is the fake with state: it carries out what reaches it, once per key, and misbehaves as the test says, one
request at a time. What its book says is the truth about parcels; no test asks the engine for it.
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from activities.tool import (
    Compensated,
    Landed,
    NotLanded,
    NotSentError,
    OutcomeUnknownError,
    Pack,
    RemoteContext,
    RemoteTool,
    Unknown,
    WorldMoved,
)
from contracts.base import Contract, JsonObject
from contracts.errors import SagaError
from contracts.reasons import Reason
from contracts.tool import (
    Access,
    Description,
    Dispatch,
    Duty,
    Example,
    Idempotency,
    ResourceUse,
    SideEffect,
    ToolContract,
    WhenMoved,
)

ADDRESS: Final = "COURIER_TEST_ADDRESS"
Doing = Literal["send", "look", "cancel", "return", "inspect"]
How = Literal["drop request", "drop reply", "late", "refuse", "busy", "wrong", "garbage", "kill before", "kill after"]


@dataclass
class Courier:
    """The other side. `book` is append-only: what was carried out, under which key, how heavy."""

    book: list[tuple[str, str, int]] = field(default_factory=list[tuple[str, str, int]])
    requests: list[tuple[Doing, str, str]] = field(default_factory=list[tuple[Doing, str, str]])
    kill: Callable[[], None] = lambda: None
    forgets_keys: bool = False
    busy_seconds: float = 1.0
    opened: bool = False
    """Somebody opens whatever is sent."""
    _parcels: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    _cancelled: set[str] = field(default_factory=set[str])
    _late: list[JsonObject] = field(default_factory=list[JsonObject])
    _how: dict[tuple[Doing, str], list[How]] = field(default_factory=dict[tuple[Doing, str], list[How]])
    _always: dict[tuple[Doing, str], How] = field(default_factory=dict[tuple[Doing, str], How])

    def does(self, doing: Doing, step_id: str, *how: How) -> None:
        """Misbehave in these ways, one request each."""
        self._how.setdefault((doing, step_id), []).extend(how)

    def always(self, doing: Doing, step_id: str, how: How | None) -> None:
        """Misbehave each time, until told otherwise."""
        if how is None:
            del self._always[doing, step_id]
        else:
            self._always[doing, step_id] = how

    def deliver(self) -> None:
        """Carry out what was late."""
        for request in self._late:
            self._carry_out(request)
        self._late.clear()

    def asked(self, doing: Doing, step_id: str) -> list[str]:
        """Keys of the requests that reached it, in order."""
        return [key for what, step, key in self.requests if (what, step) == (doing, step_id)]

    def kept(self) -> dict[str, int]:
        """Parcels that went out and did not come back, by receiver: how often."""
        counts: dict[str, int] = {}
        for what, receiver, _ in self.book:
            counts[receiver] = counts.get(receiver, 0) + (1 if what == "sent" else -1)
        return {receiver: count for receiver, count in counts.items() if count}

    def told(self) -> list[tuple[str, str]]:
        """What happened, to whose parcels."""
        return [(what, receiver) for what, receiver, _ in self.book]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, or not."""
        try:
            request: JsonObject = json.loads(await reader.readline())
            answer = self.answer(request)
            if answer is not None:
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        finally:
            writer.close()

    def answer(self, request: JsonObject) -> JsonObject | None:  # noqa: PLR0911 - one line per misbehaviour
        """Do what is asked, or what the test said instead; None hangs up."""
        doing, step_id = request["do"], request["step"]
        self.requests.append((doing, step_id, request["key"]))
        queued = self._how.get((doing, step_id))
        how = queued.pop(0) if queued else self._always.get((doing, step_id))
        match how:
            case "drop request":
                return None
            case "late":
                self._late.append(request)
                return None
            case "refuse":
                return {"refused": "the courier says no"}
            case "busy":
                return {"busy": self.busy_seconds}
            case "garbage":
                self._carry_out(request)
                return {"what": "is this?"}
            case "kill before":
                self.kill()
                return None
            case "kill after":
                self._carry_out(request)
                self.kill()
                return None
            case "drop reply":
                self._carry_out(request)
                return None
            case "wrong":
                answer = self._carry_out(request)
                return answer | {"weight_grams": answer.get("weight_grams", 0) + 1}
            case _:
                return self._carry_out(request)

    def _carry_out(self, request: JsonObject) -> JsonObject:
        key = request["key"]
        match request["do"]:
            case "send":
                if key in self._cancelled:
                    return {"refused": "that key was cancelled"}
                if key not in self._parcels or self.forgets_keys:
                    self._parcels[key] = request["parcel"] | {"parcel_number": len(self.book) + 1}
                    self.book.append(("sent", request["parcel"]["receiver"], request["parcel"]["weight_grams"]))
                return self._parcels[key]
            case "cancel":
                if key not in self._parcels:
                    self._cancelled.add(key)
                return self._parcels.get(key, {"absent": True})
            case "inspect":
                return {"opened": self.opened}
            case "return":
                if key not in self._parcels:
                    sent = self._parcels[request["undoes"]]
                    self._parcels[key] = {"returned": True}
                    self.book.append(("returned", sent["receiver"], sent["weight_grams"]))
                return {"returned": True}
            case _:
                return self._parcels.get(key, {"absent": True})


@asynccontextmanager
async def courier() -> AsyncGenerator[Courier]:
    """Open a courier's office; the tools of this process find it, and of processes that it starts."""
    made = Courier()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    os.environ[ADDRESS] = str(port)
    try:
        yield made
    finally:
        del os.environ[ADDRESS]
        server.close()
        await server.wait_closed()


# --- the tools -------------------------------------------------------------------------------------------------


class ShipSampleParcel(Contract):
    """Arguments of a parcel."""

    book_id: Annotated[str, Field(pattern=r"^B[0-9]{8}$", description="The book.", examples=["B00000001"])] = (
        "B00000001"
    )
    receiver: Annotated[str, Field(max_length=40, description="Who gets it.", examples=["ben"])]
    weight_grams: Annotated[int, Field(ge=1, le=30_000, description="How heavy it is.", examples=[500])]


class ShippedSampleParcel(Contract):
    """What a parcel gives."""

    parcel_number: Annotated[int, Field(ge=1, le=2**53 - 1, description="Number of the parcel.", examples=[7])]
    receiver: Annotated[str, Field(max_length=40, description="Who gets it.", examples=["ben"])]
    weight_grams: Annotated[int, Field(ge=1, le=30_001, description="How heavy it is.", examples=[500])]


class AskSampleCourier(Contract):
    """Arguments of a question."""

    book_id: Annotated[str, Field(pattern=r"^B[0-9]{8}$", description="The book.", examples=["B00000001"])] = (
        "B00000001"
    )


class AskedSampleCourier(Contract):
    """What a question gives."""

    receiver: Annotated[str, Field(max_length=40, description="Who waits.", examples=["ben"])]


async def _ask(context: RemoteContext, doing: Doing, **more: object) -> JsonObject:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ[ADDRESS]))
    except OSError as error:
        raise NotSentError("the courier's door is shut") from error
    request = {"do": doing, "key": context.remote_key, "step": context.step_id, **more}
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        line = await reader.readline()
    except OSError as error:
        raise OutcomeUnknownError("the courier hung up") from error
    finally:
        writer.close()
    if not line:
        raise OutcomeUnknownError("the courier did not answer")
    answer: JsonObject = json.loads(line)
    if "refused" in answer:
        raise SagaError(Reason.WRONG_STATE, answer["refused"])
    if "busy" in answer:
        raise NotSentError("the courier is busy", retry_after_seconds=answer["busy"])
    return answer


async def ship(context: RemoteContext, parcel: ShipSampleParcel) -> ShippedSampleParcel:
    """Send a parcel."""
    told = {"receiver": parcel.receiver, "weight_grams": parcel.weight_grams}
    return ShippedSampleParcel.model_validate(await _ask(context, "send", parcel=told))


async def look(context: RemoteContext, _: ShipSampleParcel) -> Landed[ShippedSampleParcel] | NotLanded | Unknown:
    """Look for a parcel."""
    return _seen(await _ask(context, "look"))


async def inspect(context: RemoteContext, _: ShipSampleParcel, __: ShippedSampleParcel) -> WorldMoved | None:
    """See whether somebody has opened a parcel."""
    answer = await _ask(context, "inspect")
    return WorldMoved(detail="somebody has opened it") if answer["opened"] else None


async def call_off(context: RemoteContext, _: ShipSampleParcel) -> Landed[ShippedSampleParcel] | NotLanded | Unknown:
    """Forbid a parcel."""
    return _seen(await _ask(context, "cancel"))


def _seen(answer: JsonObject) -> Landed[ShippedSampleParcel] | NotLanded | Unknown:
    return NotLanded() if "absent" in answer else Landed(output=ShippedSampleParcel.model_validate(answer))


async def bring_back(context: RemoteContext, _: ShipSampleParcel, __: ShippedSampleParcel | None) -> Compensated:
    """Have a parcel brought back."""
    answer = await _ask(context, "return", undoes=context.execute_remote_key)
    if "returned" not in answer:
        raise OutcomeUnknownError("the courier did not say that it is back")
    return Compensated()


async def ask(context: RemoteContext, _: AskSampleCourier) -> AskedSampleCourier:
    """Ask who waits."""
    await _ask(context, "look")
    return AskedSampleCourier(receiver="whoever waits")


def _description(does: str) -> Description:
    return Description(
        does=does, use_when="a test needs it.", not_when="it does not.", needs="nothing else.", returns="what it did."
    )


SHIP: Final = ToolContract(
    name="ship_sample_parcel",
    title="Ship a parcel",
    description=_description("Ships a parcel."),
    side_effect=SideEffect.REVERSIBLE,
    input=ShipSampleParcel,
    output=ShippedSampleParcel,
    dispatch=Dispatch.REMOTE,
    idempotency=Idempotency.HEADER,
    reasons=(Reason.WRONG_STATE,),
    resources=(ResourceUse(argument="book_id", kind="book", access=Access.HOLD, states=frozenset({"OPEN"})),),
    compensates_by="The parcel is brought back.",
    examples=(Example(utterance="Send it.", arguments={"receiver": "ben", "weight_grams": 500}),),
    timeout_seconds=1.0,
    attempts_max=3,
    owner="tests",
    downstream="courier",
    key_lifetime_seconds=3_600,
    in_flight_seconds=1,
    patience_seconds=4,
    compensations_per_minute=1_000,
)
_NO_KEYS: Final[dict[str, Any]] = {"idempotency": Idempotency.LOOKUP, "key_lifetime_seconds": 0}
_PIVOT: Final[dict[str, Any]] = {
    "side_effect": SideEffect.IRREVERSIBLE,
    "compensates_by": None,
    "compensations_per_minute": 0,
}
ASK: Final = ToolContract(
    name="ask_sample_courier",
    title="Ask the courier",
    description=_description("Asks who waits."),
    side_effect=SideEffect.READ_ONLY,
    input=AskSampleCourier,
    output=AskedSampleCourier,
    dispatch=Dispatch.REMOTE,
    reasons=(Reason.WRONG_STATE,),
    resources=(ResourceUse(argument="book_id", kind="book", access=Access.READ, states=frozenset({"OPEN"})),),
    examples=(Example(utterance="Who waits?", arguments={}),),
    timeout_seconds=1.0,
    attempts_max=3,
)

PACK: Final = Pack(
    name="couriers",
    tools=(
        RemoteTool(contract=SHIP, execute=ship, lookup=look, compensate=bring_back),
        RemoteTool(
            contract=replace(SHIP, name="carry_sample_parcel", **_NO_KEYS),
            execute=ship,
            lookup=look,
            compensate=bring_back,
        ),
        RemoteTool(
            contract=replace(SHIP, name="lend_sample_parcel", cancel_by_key=True),
            execute=ship,
            lookup=look,
            compensate=bring_back,
            cancel_by_key=call_off,
        ),
        RemoteTool(
            contract=replace(SHIP, name="rush_sample_parcel", key_lifetime_seconds=2),
            execute=ship,
            lookup=look,
            compensate=bring_back,
        ),
        RemoteTool(contract=replace(SHIP, name="mail_sample_parcel"), execute=ship, compensate=bring_back),
        RemoteTool(
            contract=replace(SHIP, name="trickle_sample_parcel", downstream="trickle", compensations_per_minute=1),
            execute=ship,
            lookup=look,
            compensate=bring_back,
        ),
        RemoteTool(contract=replace(SHIP, name="gift_sample_parcel", **_NO_KEYS | _PIVOT), execute=ship, lookup=look),
        RemoteTool(
            contract=replace(SHIP, name="after_sample_parcel", may_refuse=False, reasons=()),
            execute=ship,
            lookup=look,
            compensate=bring_back,
        ),
        RemoteTool(
            contract=replace(SHIP, name="sign_sample_parcel", duty=Duty.ONE),
            execute=ship,
            lookup=look,
            compensate=bring_back,
        ),
        RemoteTool(
            contract=replace(SHIP, name="guard_sample_parcel", when_moved=WhenMoved.PARK),
            execute=ship,
            lookup=look,
            compensate=bring_back,
            verify=inspect,
        ),
        RemoteTool(contract=ASK, execute=ask),
    ),
)


def parcel(step_id: str, tool: str = "ship", **more: object) -> JsonObject:
    """A step that sends a parcel to the receiver of its own name.

    `tool` is ship (keys are known), carry (only looked up), lend (can be called off), rush (keys are soon forgotten),
    mail (nobody can look), trickle (one comes back a minute), gift (cannot be undone), after (cannot
    refuse), sign (needs a yes), guard (is read back, and parks when somebody opened it).
    """
    arguments = {"receiver": step_id, "weight_grams": 500}
    return {"step_id": step_id, "tool": f"{tool}_sample_parcel", "arguments": arguments, **more}

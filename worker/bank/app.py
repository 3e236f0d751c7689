"""The bank over HTTP: orders, lookups and fences, its book, and the switches."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

from worker.bank.book import Entry, Order
from worker.bank.connections import HangUp
from worker.bank.rules import Bank, BankError, movement_id, movement_of
from worker.bank.switches import Switches
from worker.bank.wire import (
    ChargeOrder,
    ClockOrder,
    Door,
    ErrorAnswer,
    ErrorCode,
    FenceOrder,
    Key,
    KeyAnswer,
    Kind,
    Movement,
    PayoutOrder,
    RefundOrder,
    Switch,
    SwitchName,
)

IdempotencyKey = Annotated[Key, Header(alias="Idempotency-Key")]
"""Required: an order without a key could never be told from its repeat."""


@dataclass
class Counter:
    """What the doors share: the bank, its switches, and what still has to happen later."""

    bank: Bank
    switches: Switches = field(default_factory=Switches)
    _later: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def after(self, delay: timedelta, key: str | None = None, order: Order | None = None) -> None:
        """Later, carry out what is due, or an order that was on its way."""

        async def work() -> None:
            await asyncio.sleep(delay.total_seconds())
            try:
                if key is not None and order is not None:
                    self.bank.order(key, order)
                else:
                    self.bank.land_due()
            except BankError:
                return  # declined or fenced meanwhile: nobody waits for an answer

        task = asyncio.get_running_loop().create_task(work())
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def wake_for_pending(self) -> None:
        """After a start: have what was accepted before carried out when it is due."""
        for entry in self.bank.book.pending:
            if entry.due_at is not None:
                self.after(max(entry.due_at - self.bank.clock(), timedelta()))

    async def serve(self, door: Door, key: str, order: Order) -> Response:
        """Carry an order out and answer it, as the switches let it."""
        if (hindered := self._before(door, key, order)) is not None:
            return hindered
        if key in self.bank.in_hand:
            raise BankError(ErrorCode.IN_PROGRESS, f"An order with key {key} is in progress.")
        if slow := self.switches.take(SwitchName.SLOW, door):
            pause = timedelta(milliseconds=slow.milliseconds)
            self.bank.in_hand[key] = self.bank.clock() + pause
            try:
                await asyncio.sleep(pause.total_seconds())
            finally:
                del self.bank.in_hand[key]
        later = self.switches.take(SwitchName.LANDS_LATE, door)
        delay = timedelta(milliseconds=later.milliseconds) if later else None
        known = len(self.bank.book.entries)
        extra_cents = 1 if self.switches.take(SwitchName.BOOKS_WRONG, door) else 0
        try:
            entry = self.bank.order(key, order, later=delay, extra_cents=extra_cents)
        except BankError as error:
            if self.switches.take(SwitchName.DROP_REPLY, door):
                return HangUp(bytes(refusal(error.code, str(error)).body))
            raise
        if entry.due_at is not None and delay is not None:
            self.after(delay)
            accepted = JSONResponse(self.bank.look_up(key).model_dump(mode="json"), status_code=202)
            return HangUp(bytes(accepted.body)) if self.switches.take(SwitchName.DROP_REPLY, door) else accepted
        if door is Door.CHARGES and self.switches.take(SwitchName.REFUNDED_ELSEWHERE, door):
            self._give_back_elsewhere(entry)
        return self._after(
            door, entry.model_copy(update={"moved_cents": entry.moved_cents - extra_cents}), is_new=entry.number > known
        )

    def _give_back_elsewhere(self, entry: Entry) -> None:
        """What another customer of the bank's does with a charge."""
        assert entry.order is not None  # noqa: S101 - every landed entry has its order
        refund = Order(
            kind=Kind.REFUND,
            party=movement_id(entry),
            amount_cents=1,
            currency=entry.order.currency,
            reference="by somebody else",
        )
        self.bank.order(f"elsewhere-{entry.number}", refund)

    def _before(self, door: Door, key: str, order: Order) -> Response | None:
        """What goes wrong before anything is done."""
        if self.switches.take(SwitchName.DROP_REQUEST, door):
            return HangUp()
        if late := self.switches.take(SwitchName.ARRIVES_LATE, door):
            self.after(timedelta(milliseconds=late.milliseconds), key, order)
            return HangUp()
        for name, code in ((SwitchName.TOO_MANY, ErrorCode.TOO_MANY), (SwitchName.UNAVAILABLE, ErrorCode.UNAVAILABLE)):
            if switch := self.switches.take(name, door):
                return refusal(code, "Nothing was done; come again later.", retry_after=switch.retry_after)
        if self.switches.take(SwitchName.CONFLICT, door):
            return refusal(ErrorCode.IN_PROGRESS, f"An order with key {key} is in progress.")
        return None

    def _after(self, door: Door, entry: Entry, *, is_new: bool) -> Response:
        """What goes wrong with the answer, after everything was done."""
        movement = movement_of(entry)
        if self.switches.take(SwitchName.WRONG_AMOUNT, door):
            movement = movement.model_copy(update={"amount_cents": movement.amount_cents + 1})
        if self.switches.take(SwitchName.GARBAGE, door):
            return Response(b'{"movement_id": 7, "status": "maybe"', media_type="application/json")
        headers = {} if is_new else {"Idempotent-Replayed": "true"}
        reply = JSONResponse(movement.model_dump(mode="json"), status_code=201 if is_new else 200, headers=headers)
        return HangUp(bytes(reply.body)) if self.switches.take(SwitchName.DROP_REPLY, door) else reply

    def hindered(self, door: Door) -> Response | None:
        """What goes wrong at the doors that take no orders, before anything is done."""
        if self.switches.take(SwitchName.LOOKUP_DOWN, door) or self.switches.take(SwitchName.DROP_REQUEST, door):
            return HangUp()
        if switch := self.switches.take(SwitchName.UNAVAILABLE, door):
            return refusal(ErrorCode.UNAVAILABLE, "Come again later.", retry_after=switch.retry_after)
        return None


def refusal(code: ErrorCode, message: str, *, retry_after: str = "") -> JSONResponse:
    """Make an error's answer."""
    headers = {"Retry-After": retry_after} if retry_after else {}
    body = ErrorAnswer(code=code, message=message).model_dump(mode="json")
    return JSONResponse(body, status_code=code.status_code, headers=headers)


def make_app(bank: Bank) -> FastAPI:
    """Put the bank behind HTTP."""
    counter = Counter(bank)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        counter.wake_for_pending()
        yield

    app = FastAPI(title="A small bank", version="1", lifespan=lifespan)
    app.state.counter = counter
    app.add_exception_handler(BankError, _on_bank_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    _add_orders(app)
    _add_keys(app)
    _add_controls(app)
    return app


def _counter(request: Request) -> Counter:
    counter = request.app.state.counter
    assert isinstance(counter, Counter)  # noqa: S101 - set by make_app
    return counter


AtCounter = Annotated[Counter, Depends(_counter)]


def _add_orders(app: FastAPI) -> None:
    @app.post("/payouts", status_code=201, response_model=Movement)
    async def pay_out(counter: AtCounter, key: IdempotencyKey, body: PayoutOrder) -> Any:  # noqa: ANN401
        order = Order(
            kind=Kind.PAYOUT,
            party=body.payee_id,
            account_id=body.account_id,
            amount_cents=body.amount_cents,
            currency=body.currency,
            reference=body.reference,
            client_reference=body.client_reference,
        )
        return await counter.serve(Door.PAYOUTS, key, order)

    @app.post("/charges", status_code=201, response_model=Movement)
    async def charge(counter: AtCounter, key: IdempotencyKey, body: ChargeOrder) -> Any:  # noqa: ANN401
        order = Order(
            kind=Kind.CHARGE,
            party=body.card_id,
            amount_cents=body.amount_cents,
            currency=body.currency,
            reference=body.reference,
            client_reference=body.client_reference,
        )
        return await counter.serve(Door.CHARGES, key, order)

    @app.post("/refunds", status_code=201, response_model=Movement)
    async def refund(counter: AtCounter, key: IdempotencyKey, body: RefundOrder) -> Any:  # noqa: ANN401
        order = Order(
            kind=Kind.REFUND,
            party=body.charge_id,
            amount_cents=body.amount_cents,
            currency=body.currency,
            reference=body.reference,
            client_reference=body.client_reference,
        )
        return await counter.serve(Door.REFUNDS, key, order)


def _add_keys(app: FastAPI) -> None:
    @app.get("/entries", response_model=KeyAnswer)
    async def look_up(counter: AtCounter, key: Annotated[Key, Query()]) -> Any:  # noqa: ANN401
        return counter.hindered(Door.ENTRIES) or counter.bank.look_up(key)

    @app.post("/keys/cancel", response_model=KeyAnswer)
    async def cancel(counter: AtCounter, body: FenceOrder) -> Any:  # noqa: ANN401
        return counter.hindered(Door.CANCEL) or counter.bank.fence(body.key)


def _add_controls(app: FastAPI) -> None:
    @app.get("/book")
    async def book(counter: AtCounter) -> tuple[Entry, ...]:
        counter.bank.land_due()
        return counter.bank.book.entries

    @app.get("/switches")
    async def switches(counter: AtCounter) -> dict[SwitchName, Switch]:
        return counter.switches.on

    @app.post("/switches")
    async def switch(counter: AtCounter, wanted: dict[SwitchName, Switch]) -> dict[SwitchName, Switch]:
        counter.switches.set(wanted)
        return counter.switches.on

    @app.post("/clock")
    async def clock(counter: AtCounter, body: ClockOrder) -> dict[str, str]:
        counter.bank.clock.advance(body.advance_seconds)
        counter.bank.land_due()
        return {"now": counter.bank.clock().isoformat()}


async def _on_bank_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, BankError)  # noqa: S101 - registered for it alone
    return refusal(error.code, str(error))


async def _on_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - as above
    wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    return refusal(ErrorCode.INVALID, wrong)

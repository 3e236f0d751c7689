"""The front door: from bytes that an agent posted to one envelope, for HTTP, MCP, the CLI and Python alike.

A bad intent is refused by pure code and leaves nothing but one audit row, written after the answer is ready. A good
one is started under an id made from its key; *accepted* means that Temporal acknowledged the start. A repeat is told
by the tables: joined while it runs, answered with the stored outcome, or refused by name. A lost acknowledgement is
a 503 with an unknown outcome that may be sent again; the same post joins. What a run says of its end is held against
the tables, and they decide: an intent that they do not know was never COMMITTED here.
"""

import secrets
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, LiteralString, Self

from pydantic import ValidationError
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from activities.admission import Admission
from activities.database import Database, Transaction
from activities.dispatch import Engine
from activities.locks import in_the_way
from activities.repeats import ALIAS, admit_repeat, check_alias
from activities.tool import Pack
from contracts.envelope import Envelope, error_envelope
from contracts.errors import Phase, SagaError
from contracts.intent import Caller, IntentRequest
from contracts.problems import field_problems
from contracts.proposal import Proposal, propose
from contracts.reasons import EffectOutcome, Reason
from contracts.registry import Registry
from contracts.risk import DEFAULT_POLICY, Policy
from contracts.shape import shape_of
from contracts.wire import decode_object, refusal
from worker.answers import (
    Known,
    completed,
    find,
    named,
    not_found,
    not_known,
    pending,
    read_ended,
    read_known,
    repeated,
    unanswered,
)
from worker.listings import answer
from worker.messages import Messages
from worker.notes import Notes
from worker.outlook import Outlook, outlook_before_admission, outlook_of
from worker.places import Carrier
from worker.preview import preview_of
from worker.runs import unadmitted
from worker.settings import Settings
from worker.starts import RPC_SECONDS, Starts, down

WAIT_SECONDS: Final = 30.0
JOINS_MAX: Final = 3

_OCCUPANT: Final[LiteralString] = """
select intent_id, tenant from backstay.intents
where workflow_id = %s and intent_key <> %s and final_at is null limit 1
"""


class Door:
    """One front door of a process; share it, so that its bound on what is carried at a time holds.

    Use as an async context manager, or call `close`: it writes the audit rows that are still on their way.
    """

    def __init__(
        self,
        client: Client,
        database: Database,
        registry: Registry,
        settings: Settings,
        *,
        packs: tuple[Pack, ...] = (),
        policy: Policy = DEFAULT_POLICY,
        in_flight_max: int = 64,
    ) -> None:
        """Stand before `client` and `database`, which stay the caller's to close."""
        self._client = client
        self._database = database
        self._registry = registry
        self._starts = Starts(client, settings)
        self._admission = Admission(database, registry, packs, policy)
        self._carrier = Carrier(database, in_flight_max)
        self._notes = Notes(database)
        self.messages = Messages(client, database)
        """What people say to running sagas: cancel, decide, resolve."""

    @classmethod
    def of(cls, client: Client, engine: Engine, settings: Settings, *, in_flight_max: int = 64) -> Self:
        """Make a door to everything that an engine serves; `plan` needs its packs."""
        return cls(
            client,
            engine.database,
            engine.registry,
            settings,
            packs=engine.packs,
            policy=engine.policy,
            in_flight_max=in_flight_max,
        )

    async def __aenter__(self) -> Self:
        """Open nothing: the door is open."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the door."""
        await self.close()

    async def close(self) -> None:
        """Write the audit rows that are on their way, and stop following what was posted; sagas go on by themselves."""
        await self._notes.close()
        await self._carrier.close()

    # --- posting ------------------------------------------------------------------------------------------------

    async def post(
        self,
        body: bytes,
        caller: Caller,
        *,
        session_id: str | None = None,
        business_reference: str | None = None,
        idempotency_key: str | None = None,
        call_id: str | None = None,
        wait_seconds: float | None = None,
        eager: bool = False,
        accepted: Callable[[str], None] = lambda _: None,
    ) -> Envelope:
        """Post an intent and answer with its envelope; never raises for anything that the caller or the world did.

        Waits for the outcome at most `wait_seconds` (None: 30; 0: not at all), and no longer than until the saga
        waits for people; then the answer is 202 with `poll_after_ms`. `eager`: this process also has a worker.
        `accepted` is called with the intent's id once it is certain that the intent goes on by itself.
        """
        started = time.monotonic()
        request_id = _request_id()
        proposal: Proposal | None = None
        try:
            request, proposal = await self._proposed(
                body,
                caller,
                session_id=session_id,
                business_reference=business_reference,
                idempotency_key=idempotency_key,
                call_id=call_id,
            )
            wait = WAIT_SECONDS if wait_seconds is None else max(0.0, wait_seconds)
            envelope = await self._post(request, proposal, wait, accepted, eager=eager)
            envelope = named(envelope, proposal.intent_id)
        except SagaError as error:
            if proposal is not None and error.info.outcome is EffectOutcome.UNKNOWN:
                envelope = unanswered(error.info, proposal.intent_id)
            else:
                envelope = error_envelope(error.info)
            if error.reason is not Reason.DEPENDENCY_DOWN:
                self._notes.add(caller, error.info, request_id)
        return completed(envelope, request_id=request_id, call_id=call_id, started=started)

    async def _proposed(
        self,
        body: bytes,
        caller: Caller,
        *,
        session_id: str | None,
        business_reference: str | None,
        idempotency_key: str | None,
        call_id: str | None,
    ) -> tuple[IntentRequest, Proposal]:
        """Check an intent completely; only `retry_of` needs the tables. Raises SagaError."""
        given = decode_object(body)
        if session_id is not None:
            given["session_id"] = session_id
        proposal = propose(given, caller, self._registry, business_reference=business_reference)
        attempt = 1
        if (retried := proposal.intent.retry_of) is not None:
            row = await self._database.one(
                "select attempt from backstay.intents where intent_id = %s and tenant = %s and principal = %s",
                (retried, caller.tenant, caller.principal),
            )
            if row is None:
                raise not_found(retried)
            attempt = row["attempt"] + 1
            proposal = propose(given, caller, self._registry, attempt=attempt, business_reference=business_reference)
        values = {
            "protocol": 1,
            "caller": caller,
            "intent": given,
            "attempt": attempt,
            "business_reference": business_reference,
            "idempotency_key": idempotency_key,
            "call_id": call_id,
        }
        try:
            return IntentRequest.model_validate(values), proposal
        except ValidationError as error:
            problems = field_problems(error, shape_of(IntentRequest), values)
            raise refusal(Reason.ARGUMENTS_INVALID, problems) from None

    async def _post(
        self,
        request: IntentRequest,
        proposal: Proposal,
        wait: float,
        accepted: Callable[[str], None],
        *,
        eager: bool,
    ) -> Envelope:
        if request.idempotency_key is not None and await self._is_alias(proposal, request.idempotency_key):
            return await self._repeat(request, proposal, wait, accepted)
        await self._carrier.places.take()
        try:
            handle = await self._starts.start(request, proposal, eager=eager)
        except WorkflowAlreadyStartedError:
            self._carrier.places.give_back()
            return await self._repeat(request, proposal, wait, accepted)
        except BaseException:
            self._carrier.places.give_back()
            raise
        accepted(proposal.intent_id)
        envelope = await self._carrier.follow(handle, proposal.intent_key, wait, holds_place=True)
        if envelope is not None and envelope.meta.duplicate:
            return await self._repeat(request, proposal, wait, accepted)
        return await self._held_against_the_tables(proposal, envelope)

    async def _held_against_the_tables(self, proposal: Proposal, told: Envelope | None) -> Envelope:
        """Answer as the tables say, whatever the run told (None: nothing yet). Raises SagaError(MISMATCH)."""
        try:
            ended = told is not None and await read_ended(self._database, proposal.intent_key)
            known = ended or await self._known(proposal)
        except SagaError:
            return pending(proposal)  # it is accepted, and stays so while the database is away
        refusal_of_admission = told if told is not None and told.meta.intent_id is None else None
        error = refusal_of_admission.error if refusal_of_admission else None
        if known is not None and (error is None or error.code.is_transient):
            return known.envelope(duplicate=known.standing.epoch > 1)
        if told is None:
            return pending(proposal)
        if refusal_of_admission is not None:
            return refusal_of_admission
        raise not_known(proposal, told)

    async def _is_alias(self, proposal: Proposal, idempotency_key: str) -> bool:
        """True when this explicit key names this intent already. Raises SagaError(KEY_REUSED)."""
        caller = proposal.caller
        alias = await self._database.one(ALIAS, (caller.tenant, caller.principal, idempotency_key))
        check_alias(alias, proposal)
        return alias is not None

    async def plan(
        self,
        body: bytes,
        caller: Caller,
        *,
        session_id: str | None = None,
        business_reference: str | None = None,
        call_id: str | None = None,
    ) -> Envelope:
        """Judge an intent as admission would, and write nothing; `data` is a `worker.preview.Preview`."""
        started = time.monotonic()
        try:
            request, proposal = await self._proposed(
                body,
                caller,
                session_id=session_id,
                business_reference=business_reference,
                idempotency_key=None,
                call_id=call_id,
            )
            plan = await self._admission.plan(request, proposal)
            known = await self._known(proposal)
            before = known.report().outcome if known else None
            envelope = answer(preview_of(plan, proposal.proof, self._registry, before).model_dump(mode="json"))
        except SagaError as error:
            envelope = error_envelope(error.info)
        return completed(envelope, request_id=_request_id(), call_id=call_id, started=started)

    # --- what is there ------------------------------------------------------------------------------------------

    async def show(self, tenant: str, intent_id: str) -> Envelope:
        """Tell how an intent stands, also before admission; raises SagaError as `worker.answers.find`."""
        try:
            return (await find(self._database, tenant, intent_id)).envelope()
        except SagaError as error:
            if error.reason is not Reason.INTENT_NOT_FOUND:
                raise
        return await unadmitted(self._client, tenant, intent_id)

    async def why(self, tenant: str, intent_id: str) -> Outlook:
        """Tell what an intent waits for, what happens next and what a person can do; raises as `show`."""
        try:
            known = await find(self._database, tenant, intent_id)
            return await outlook_of(self._client, known, await in_the_way(self._database, known.intent_key))
        except SagaError as error:
            if error.reason is not Reason.INTENT_NOT_FOUND:
                raise
        return await outlook_before_admission(self._client, tenant, intent_id)

    # --- repeats ------------------------------------------------------------------------------------------------

    async def _repeat(
        self, request: IntentRequest, proposal: Proposal, wait: float, accepted: Callable[[str], None]
    ) -> Envelope:
        """Answer for an intent that was posted before. Raises SagaError.

        Starts it only where its workflow id was taken by a run of another intent that is over.
        """
        for _ in range(JOINS_MAX):
            known = await self._known(proposal, repeats=request)
            if known is not None and (known.standing.phase.is_final or known.is_at_rest):
                return known.envelope(duplicate=True)
            workflow_id = proposal.intent_id if known is None else known.row["workflow_id"]
            handle = self._client.get_workflow_handle(workflow_id, result_type=Envelope)
            if known is None:
                await self._check_running(handle, proposal)
            accepted(proposal.intent_id)
            envelope = await self._carrier.follow(handle, proposal.intent_key, wait, holds_place=False)
            if known is None and envelope is not None and envelope.meta.intent_id not in (None, proposal.intent_id):
                return await self._start_over(request, proposal, wait)
            if envelope is None or not envelope.meta.duplicate:
                return repeated(await self._held_against_the_tables(proposal, envelope), proposal)
        raise SagaError(Reason.IN_PROGRESS, f"Intent {proposal.intent_id} is changing hands; post it again.")

    async def _start_over(self, request: IntentRequest, proposal: Proposal, wait: float) -> Envelope:
        """Start an intent whose workflow id a closed run of another one took. Raises SagaError."""
        try:
            handle = await self._starts.start(request, proposal, over_a_closed_run=True)
        except WorkflowAlreadyStartedError:
            return repeated(pending(proposal), proposal)  # the same post, a moment earlier
        envelope = await self._carrier.follow(handle, proposal.intent_key, wait, holds_place=False)
        return await self._held_against_the_tables(proposal, envelope)

    async def _known(self, proposal: Proposal, *, repeats: IntentRequest | None = None) -> Known | None:
        """Read how it stands; for a repeat judge it too, and remember its explicit key. Raises SagaError."""

        async def work(transaction: Transaction) -> Known | None:
            known = await read_known(transaction, proposal.intent_key)
            if known is None or repeats is None:
                return known
            alias = await transaction.one(
                ALIAS, (proposal.caller.tenant, proposal.caller.principal, repeats.idempotency_key)
            )
            check_alias(alias, proposal)
            await admit_repeat(
                transaction,
                known.row,
                proposal,
                idempotency_key=repeats.idempotency_key,
                replays=alias is not None,
            )
            return known

        return await self._database.run(work)

    async def _check_running(self, handle: WorkflowHandle[Any, Envelope], proposal: Proposal) -> None:
        """Compare with what runs under its id unadmitted. Raises SagaError: KEY_REUSED, RESOURCE_LOCKED."""
        occupant = await self._database.one(_OCCUPANT, (handle.id, proposal.intent_key))
        if occupant is not None:
            named_one = f"intent {occupant['intent_id']}" if occupant["tenant"] == proposal.caller.tenant else "another"
            raise SagaError(
                Reason.RESOURCE_LOCKED,
                f"The workflow id {handle.id} is taken by a run of {named_one}, which nobody posted at a front door."
                " Nothing was started; let that run end or cancel it, then post this again.",
                details={"workflow_id": handle.id},
                phase=Phase.VALIDATION,
            )
        try:
            described = await handle.describe(rpc_timeout=timedelta(seconds=RPC_SECONDS))
            memo = await described.memo()
        except RPCError as error:
            raise down(error) from error
        if memo.get("body_digest", proposal.body_digest) != proposal.body_digest:
            raise SagaError(
                Reason.KEY_REUSED,
                f"Intent {proposal.intent_id} is running with other arguments; post it as another intent.",
                details={"intent_id": proposal.intent_id},
                phase=Phase.VALIDATION,
            )


def _request_id() -> str:
    return f"req_{secrets.token_hex(8)}"

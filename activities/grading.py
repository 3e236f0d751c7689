"""Late grades: a step whose amount, payee, count or source is bound is graded once that is known (ADR 0012).

What was read or made is taken from the tables, never from a message. The intent's row is locked meanwhile, so that no
step of it lands between what is counted as over and the objects that are read: funds are never counted twice, and of
two steps that together are large the second sees the first.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, LiteralString

from pydantic import BaseModel, ValidationError

from activities import audit
from activities.database import Database, Row, Transaction
from activities.late import graded_steps
from activities.near import alike, ask_alike, lock_near
from activities.objects import read_objects
from activities.standing import ASK, ask_of, caller_of, locked, plan_of, standing_of
from activities.tool import Pack
from contracts.base import JsonObject
from contracts.binding import bindings_of, resolve
from contracts.errors import Phase, SagaError
from contracts.keys import canonical_json, digest
from contracts.near import near_keys
from contracts.plan import Plan, PlannedStep
from contracts.planning import grade_late
from contracts.problems import field_problems
from contracts.proposal import ProposedStep
from contracts.reasons import Reason
from contracts.registry import Registry
from contracts.risk import Grade, Policy
from contracts.saga import GradeAnswer, GradeCall, Graded, IntentPhase, Standing
from contracts.shape import shape_of
from contracts.tool import AnyContract
from contracts.wire import Path

_READINGS: Final[LiteralString] = "select step_key, response from backstay.readings where intent_key = %s"
_SENT: Final[LiteralString] = "select step_id from backstay.attempts where intent_key = %s and direction = 'execute'"
_GRADE: Final[LiteralString] = """
with graded as (
    insert into backstay.late_grades (intent_key, step_id, level, duty, because, arguments, digest, policy_digest)
    values (%(intent_key)s, %(step_id)s, %(level)s, %(duty)s, %(because)s, %(arguments)s, %(digest)s, %(policy_digest)s)
    returning intent_key, step_id, duty, digest
)
insert into backstay.approval_requests (intent_key, step_id, duty, plan_digest, reason, expires_at)
select g.intent_key, g.step_id, g.duty, g.digest, %(reason)s,
    least(now() + make_interval(secs => %(expiry)s), i.deadline_at)
from graded g join backstay.intents i using (intent_key) where g.duty <> 'NONE'
"""
_ASKED: Final[LiteralString] = "select request, lineage_digest from backstay.intents where intent_key = %s"
NEAR: Final[LiteralString] = """
insert into backstay.near_duplicates (near_key, intent_key, step_id)
select n.near_key, %(intent_key)s, n.step_id
from unnest(%(near_keys)s::text[], %(step_ids)s::text[]) as n(near_key, step_id)
where not exists (select from backstay.near_duplicates d
    where d.near_key = n.near_key and d.intent_key = %(intent_key)s and d.step_id = n.step_id)
"""


@dataclass(frozen=True)
class Grading:
    """Everything that a late grade is decided by."""

    database: Database
    registry: Registry
    packs: tuple[Pack, ...]
    policy: Policy

    async def grade_step(self, call: GradeCall) -> GradeAnswer:
        """Grade a step once and ask people where they have to agree; a repeat gets what is stored.

        Raises SagaError: what admission refuses (NOT_OWNER, FUNDS_INSUFFICIENT, DUTY_NOT_AVAILABLE, ...), then nothing
        but one audit row is written; INTENT_NOT_FOUND, RUN_STALE, INTENT_PARKED, SUPERSEDED, MISMATCH; transient ones.
        """
        try:
            return await self.database.run(lambda transaction: self._grade(transaction, call))
        except SagaError as error:
            refused = error
        if not refused.reason.is_transient:
            await self.database.run(lambda transaction: self._note(transaction, call, refused))
        raise refused

    async def _grade(self, transaction: Transaction, call: GradeCall) -> GradeAnswer:
        row, asked, effects = await locked(transaction, call.claim)
        standing = standing_of(row, asked)
        plan, step = _late_step(row, standing, call)
        known = await graded_steps(transaction, plan.intent_key)
        if step.step_id in known:
            return GradeAnswer(graded=known[step.step_id], ask=standing.ask)
        outputs = await outputs_of(transaction, plan, effects)
        known_now = filled(step, outputs)
        check_known(self.registry[step.tool], known_now, step)
        arguments = {step_id: graded.arguments for step_id, graded in known.items()} | {step.step_id: known_now}
        steps = _steps_of(plan, self.registry, arguments)
        sent = await transaction.all(_SENT, (plan.intent_key,)) if plan.is_remote else []
        over = {*outputs, *(each["step_id"] for each in (*effects, *sent))}
        objects = await read_objects(transaction, self.packs, steps)
        earlier = await _near(transaction, plan, steps, step.step_id)
        grade = grade_late(step, steps, over, caller=plan.caller, objects=objects, policy=self.policy, earlier=earlier)
        graded = await self._store(transaction, row, step, grade, known_now)
        return GradeAnswer(graded=graded, ask=ask_of(await transaction.all(ASK, (plan.intent_key,))))

    async def _store(
        self, transaction: Transaction, row: Row, step: PlannedStep, grade: Grade, arguments: JsonObject
    ) -> Graded:
        graded = Graded(
            step_id=step.step_id,
            level=grade.level,
            duty=grade.duty,
            because=grade.because,
            arguments=arguments,
            digest=digest([row["plan_digest"], step.step_id, arguments]),
        )
        await transaction.later(
            _GRADE,
            {
                "intent_key": row["intent_key"],
                "step_id": step.step_id,
                "level": graded.level,
                "duty": graded.duty.value,
                "because": list(graded.because),
                "arguments": canonical_json(arguments).decode(),
                "digest": graded.digest,
                "policy_digest": self.policy.digest,
                "reason": "; ".join(graded.because),
                "expiry": self.policy.approval_expiry_seconds,
            },
        )
        result: JsonObject = {"level": graded.level, "duty": graded.duty.value, "because": list(graded.because)}
        await self._tell(transaction, "graded", row, step, arguments, result)
        return graded

    async def _note(self, transaction: Transaction, call: GradeCall, refused: SagaError) -> None:
        row = await transaction.one("select * from backstay.intents where intent_key = %s", (call.claim.intent_key,))
        step = plan_of(row["plan"]).by_id.get(call.step_id) if row is not None and row["plan"] else None
        if row is not None and step is not None:
            result: JsonObject = {"reason": refused.reason.value, "message": str(refused)}
            await self._tell(transaction, "refusal", row, step, step.arguments, result)

    async def _tell(  # noqa: PLR0917 - one audit row
        self,
        transaction: Transaction,
        kind: str,
        row: Row,
        step: PlannedStep,
        arguments: JsonObject,
        result: JsonObject,
    ) -> None:
        await audit.append(
            transaction,
            kind,
            caller=caller_of(row),
            intent_key=row["intent_key"],
            step_id=step.step_id,
            tool=step.tool,
            arguments=audit.masked(arguments, self.registry[step.tool].sensitive_fields),
            policy_digest=self.policy.digest,
            result=result,
        )


async def _near(transaction: Transaction, plan: Plan, steps: list[ProposedStep], step_id: str) -> str | None:
    """Find the intent that did the same before, now that it is known what; later ones find this one."""
    asked = await transaction.one(_ASKED, (plan.intent_key,))
    if asked is None:
        raise AssertionError("the intent's row is locked")
    keys = near_keys(plan.caller, steps, json.loads(asked["request"]).get("business_reference"))
    await lock_near(transaction, keys)
    mine = {step_id: keys[step_id]}
    found = await alike(await ask_alike(transaction, steps, asked["lineage_digest"], mine), mine)
    values = {"intent_key": plan.intent_key, "near_keys": list(keys.values()), "step_ids": list(keys)}
    await transaction.later(NEAR, values)
    return found.get(step_id)


async def outputs_of(transaction: Transaction, plan: Plan, effects: list[Row]) -> dict[str, JsonObject]:
    """What the steps that are done have answered, by step id."""
    read = {row["step_key"]: row["response"] for row in await transaction.all(_READINGS, (plan.intent_key,))}
    landed = {
        row["step_id"]: row["response"]
        for row in effects
        if row["direction"] == "execute" and row["state"] == "LANDED" and row["response"] is not None
    }
    told = {step.step_id: read.get(plan.execute_key(step.step_id)) for step in plan.steps} | landed
    told |= {step_id: told[other] for step_id, other in plan.fallbacks.items() if told.get(other) is not None}
    return {step_id: json.loads(response) for step_id, response in told.items() if response is not None}


def _late_step(row: Row, standing: Standing, call: GradeCall) -> tuple[Plan, PlannedStep]:
    """Find the step that is graded. Raises SagaError when it is none, or when nothing may land any more."""
    if standing.parked is not None:
        raise SagaError(Reason.INTENT_PARKED, f"Intent {row['intent_id']} is parked: {standing.parked}.")
    if standing.phase is not IntentPhase.ADMITTED:
        raise SagaError(Reason.SUPERSEDED, f"Intent {row['intent_id']} is {standing.phase}; no step may land.")
    step = standing.plan.by_id.get(call.step_id) if standing.plan is not None else None
    if standing.plan is None or step is None or not step.late:
        raise SagaError(Reason.MISMATCH, f"Intent {row['intent_id']} has no step {call.step_id!r} that is graded late.")
    return standing.plan, step


def filled(step: PlannedStep | ProposedStep, outputs: Mapping[str, JsonObject]) -> JsonObject:
    """Fill in the late arguments; every other binding stays what it is. Raises SagaError(ARGUMENTS_INVALID)."""
    tops = {name.partition(".")[0] for name in step.late}
    late = {name: value for name, value in step.arguments.items() if name in tops}
    return {**step.arguments, **resolve(late, outputs)}


def check_known(contract: AnyContract, arguments: JsonObject, step: PlannedStep) -> None:
    """Refuse arguments that are wrong as far as they are known. Raises SagaError(ARGUMENTS_INVALID).

    What is still bound the plan says: an output that looks like a binding is a wrong value.
    """
    model: type[BaseModel] = contract.input
    try:
        model.model_validate_json(json.dumps(arguments), strict=True)
    except ValidationError as error:
        tops = {name.partition(".")[0] for name in step.late}
        bound = {binding.target for binding in bindings_of(step.arguments)[0] if binding.target[0] not in tops}

        def is_bound(path: Path) -> bool:
            return any(path[:length] in bound for length in range(len(path) + 1))

        problems = field_problems(
            error,
            shape_of(model),
            arguments,
            at=("arguments",),
            skip=is_bound,
            sensitive=contract.sensitive_fields,
        )
        if problems:
            raise SagaError(
                Reason.ARGUMENTS_INVALID,
                f"{len(problems)} field(s) are wrong: {', '.join(problem.path for problem in problems)}.",
                fields=problems,
                phase=Phase.VALIDATION,
            ) from None


def _steps_of(plan: Plan, registry: Registry, known: Mapping[str, JsonObject]) -> list[ProposedStep]:
    """The steps of a plan with every late argument that is known."""
    return [
        ProposedStep(
            step_id=step.step_id,
            contract=registry[step.tool],
            arguments=known.get(step.step_id, step.arguments),
            needs=step.needs,
            bindings=bindings_of(step.arguments)[0],
            position=number,
            late=step.late,
            stands_for=step.stands_for,
        )
        for number, step in enumerate(plan.steps)
    ]

"""Handlers that do not fit their contract. Each marked line is wrong on purpose; nothing else is."""

from activities.database import Transaction
from activities.tool import Compensated, StepContext, Tool
from tests.typing.right import (
    CONTRACT,
    GrantedPoints,
    GrantPoints,
    OtherInput,
    OtherOutput,
    check_total,
    grant,
    undo,
)


async def other_input(_: Transaction, __: OtherInput, ___: StepContext) -> GrantedPoints:
    """Take the arguments of another tool."""
    return GrantedPoints(points_total=1)


async def other_output(_: Transaction, __: GrantPoints, ___: StepContext) -> OtherOutput:
    """Give what another tool gives."""
    return OtherOutput(other_total=1)


async def no_context(_: Transaction, __: GrantPoints) -> GrantedPoints:
    """Lack the context."""
    return GrantedPoints(points_total=1)


def not_async(_: Transaction, __: GrantPoints, ___: StepContext) -> GrantedPoints:
    """Answer at once."""
    return GrantedPoints(points_total=1)


async def wrong_inside(_: Transaction, points: GrantPoints, context: StepContext) -> GrantedPoints:
    """Use what is not there and give what was not promised."""
    agent: int = context.agent  # wrong: assignment | reportAssignmentType
    if points.total:  # wrong: attr-defined | reportAttributeAccessIssue, reportUnknownMemberType
        return OtherOutput(other_total=agent)  # wrong: return-value | reportReturnType
    points.points = 7  # wrong: misc | -
    return GrantedPoints(points_total="seven")  # wrong: arg-type | reportArgumentType


async def needs_output(_: Transaction, __: GrantPoints, ___: GrantedPoints, ____: StepContext) -> Compensated:
    """Believe that the outcome is always known."""
    return Compensated()


async def undo_other(_: Transaction, __: OtherInput, ___: GrantedPoints | None, ____: StepContext) -> Compensated:
    """Undo another tool."""
    return Compensated()


async def undo_silently(_: Transaction, __: GrantPoints, ___: GrantedPoints | None, ____: StepContext) -> None:
    """Say nothing of what could not be restored."""


async def undo_blindly(_: Transaction, __: GrantPoints, output: GrantedPoints | None, ___: StepContext) -> Compensated:
    """Forget that the outcome may not be known."""
    return Compensated(residue=f"{output.points_total} points")  # wrong: union-attr | reportOptionalMemberAccess


async def verify_other(_: Transaction, __: GrantPoints, ___: OtherOutput, ____: StepContext) -> None:
    """Look at what another tool gives."""


async def verify_less(_: Transaction, __: GrantPoints, ___: StepContext) -> None:
    """Look at nothing."""


async def verify_bool(_: Transaction, __: GrantPoints, ___: GrantedPoints, ____: StepContext) -> bool:
    """Answer where it should raise: the engine would not look."""
    return False


Tool(contract=CONTRACT, execute=other_input, compensate=undo)  # wrong: arg-type | reportArgumentType
Tool(contract=CONTRACT, execute=other_output, compensate=undo)  # wrong: arg-type | reportArgumentType
Tool(contract=CONTRACT, execute=no_context, compensate=undo)  # wrong: arg-type | reportArgumentType
Tool(contract=CONTRACT, execute=not_async, compensate=undo)  # wrong: arg-type | reportArgumentType
Tool(contract=CONTRACT, execute=grant, compensate=needs_output)  # wrong: arg-type | reportArgumentType
Tool(contract=CONTRACT, execute=grant, compensate=undo_other)  # wrong: arg-type | reportArgumentType
Tool(contract=CONTRACT, execute=grant, compensate=undo_silently)  # wrong: arg-type | reportArgumentType
Tool(contract=CONTRACT, execute=grant, compensate=undo, verify=verify_other)  # wrong: arg-type | reportArgumentType
Tool(contract=CONTRACT, execute=grant, compensate=undo, verify=verify_less)  # wrong: arg-type | reportArgumentType
Tool(contract=CONTRACT, execute=grant, compensate=undo, verify=verify_bool)  # wrong: arg-type | reportArgumentType
Tool(contract=CONTRACT, execute=undo, compensate=grant)  # wrong: arg-type | reportArgumentType
Tool(contract=CONTRACT, execute=grant, compensate=check_total)  # wrong: arg-type | reportArgumentType
Tool(contract=CONTRACT, execute=grant, compensate=undo, verify=undo)  # wrong: arg-type | reportArgumentType
Tool(CONTRACT, grant, undo)  # wrong: call-arg | reportCallIssue
Tool(contract=CONTRACT, compensate=undo)  # wrong: call-arg | reportCallIssue

"""Contracts and packs that are put together wrongly. Each marked line is wrong on purpose; nothing else is."""

from dataclasses import dataclass
from typing import Any

from activities.tool import Pack
from contracts.tool import Access, AmountUse, ResourceUse, ToolContract
from tests.typing.right import CONTRACT, TOOL, GrantedPoints, GrantPoints


@dataclass
class Plain:
    """No model."""

    card_id: str


def query_of(table: str) -> str:
    """Make SQL of a value."""
    return table.upper()


of: dict[str, Any] = {}

ToolContract(**of, input=Plain, output=GrantedPoints)  # wrong: type-var | reportArgumentType
ToolContract(**of, input=GrantPoints, output=dict[str, str])  # wrong: type-var | reportArgumentType
ToolContract(**of, input=GrantPoints, output=GrantedPoints(points_total=1))  # wrong: arg-type | reportArgumentType
ToolContract(**of, side_effect="ONCE", input=GrantPoints, output=GrantedPoints)  # wrong: arg-type | reportArgumentType
ToolContract(**of, input=GrantPoints, output=GrantedPoints, reasons=("NO",))  # wrong: arg-type | reportArgumentType
ToolContract(**of, input=GrantPoints, output=GrantedPoints, retries=3)  # wrong: call-arg | reportCallIssue
ResourceUse(argument="card_id", kind="card", access="TAKE", states=frozenset())  # wrong: arg-type | reportArgumentType
ResourceUse(argument="card_id", kind="card", access=Access.TAKE, states="OPEN")  # wrong: arg-type | reportArgumentType
AmountUse(argument="points")  # wrong: call-arg | reportCallIssue
Pack(name="typed", tools=(CONTRACT,))  # wrong: arg-type | reportArgumentType
Pack(name="typed", tools=TOOL)  # wrong: arg-type | reportArgumentType
Pack(name="typed", tools=(TOOL,), resources={"card": query_of("cards")})  # wrong: - | reportArgumentType
Pack("typed", (TOOL,))  # wrong: call-arg | reportCallIssue
CONTRACT.name = "another_typed_name"  # wrong: misc | reportAttributeAccessIssue
TOOL.execute = None  # wrong: assignment, misc | reportAttributeAccessIssue

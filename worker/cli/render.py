"""How answers look to people: a saga as a tree, lists as tables; rich on a terminal, plain text everywhere else.

Everything is built as `Node`s and `Table`s first, so that both looks say the same. Whatever came from outside is shown
with its control characters escaped: no text of an agent steers a terminal.
"""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from contracts.base import JsonObject
from contracts.confirmation import confirms
from contracts.envelope import Envelope, IntentReport, Outcome, StepReport, StepState
from contracts.errors import ErrorInfo

if TYPE_CHECKING:
    from rich.tree import Tree

WIDTH_MAX: Final = 400
LAST_COLUMN_MIN: Final = 16
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_STATE_STYLES: Final = {
    StepState.DONE: "green",
    StepState.COMPENSATED: "cyan",
    StepState.REFUSED: "red",
    StepState.PARKED: "bold red",
    StepState.UNKNOWN: "bold red",
    StepState.AWAITING_APPROVAL: "yellow",
    StepState.EXECUTING: "blue",
    StepState.COMPENSATING: "blue",
}
_OUTCOME_STYLES: Final = {
    Outcome.COMMITTED: "bold green",
    Outcome.COMPENSATED: "bold cyan",
    Outcome.NOT_APPLIED: "bold red",
    Outcome.PARKED: "bold red",
    Outcome.PENDING: "bold yellow",
}


@dataclass(frozen=True)
class Node:
    """A line and what hangs below it; `style` colours the line on a terminal and says nothing by itself."""

    text: str
    children: tuple["Node", ...] = ()
    style: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under headings, only the last of which wraps; `empty` is said when there are none.

    `width_max`: printed where there is no terminal, a wider one becomes a list, too.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    empty: str = "none"
    width_max: int | None = None


View = Node | Table | str


def show(views: Iterable[View]) -> None:
    """Print to standard output: rich on a terminal, plain text otherwise."""
    if sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415 - only a terminal pays for it

        console = Console(highlight=False, emoji=False)
        for view in views:
            for part in fitted(view, console.width):
                console.print(_rich(part))
        return
    for view in views:
        for part in (view,) if not isinstance(view, Table) or view.width_max is None else fitted(view, view.width_max):
            sys.stdout.write(plain(part))


def fitted(view: View, width: int) -> Iterable[View]:
    """Leave a view as it is, or turn a table that is too wide into a list: an id that is cut off is of no use."""
    if not isinstance(view, Table) or not view.rows:
        return (view,)
    widths = [max(len(row[column]) for row in (view.headings, *view.rows)) for column in range(len(view.headings))]
    if sum(widths[:-1]) + min(widths[-1], LAST_COLUMN_MIN) + 2 * (len(widths) - 1) <= width:
        return (view,)
    return tuple(
        Node(
            row[0],
            tuple(Node(f"{name}: {cell}") for name, cell in zip(view.headings[1:], row[1:], strict=True) if cell),
        )
        for row in view.rows
    )


def saga(envelope: Envelope) -> Node:
    """Draw an intent: outcome, steps with state, key, transaction, output and residue, error, what it waits for."""
    if envelope.data is None or "outcome" not in envelope.data:
        return problem(envelope)
    report = IntentReport.model_validate(envelope.data)
    repeat = "  (the answer to an earlier post of the same intent)" if envelope.meta.duplicate else ""
    cause = f"  {report.cause}" if report.cause != "none" else ""
    children = [step(told) for told in report.steps]
    if envelope.error is not None and not any(_is_same(told.error, envelope.error) for told in report.steps):
        children.append(error_node(envelope.error))
    if report.waiting_for is not None:
        children.append(Node(f"waits for {clean(report.waiting_for)}", style="yellow"))
    return Node(
        f"{envelope.meta.intent_id or 'intent'}  {report.outcome}{cause}{repeat}",
        tuple(children),
        style=_OUTCOME_STYLES[report.outcome],
    )


def _is_same(told: ErrorInfo | None, error: ErrorInfo) -> bool:
    """True for one error said of a step and of the intent, whose end leaves something else behind."""
    return told is not None and (told.code, told.message) == (error.code, error.message)


def tree_of(envelope: Envelope) -> "Tree":
    """Draw an intent's envelope as a rich tree, for live displays."""
    return _tree(saga(envelope))


def step(report: StepReport) -> Node:
    """Draw one step."""
    number = f"  #{report.transaction_id}" if report.transaction_id is not None else ""
    children: list[Node] = []
    if report.step_key is not None:
        children.append(Node(f"key {report.step_key}", style="dim"))
    if report.applied_args:
        children.append(Node(taken("took", report.step_id, report.applied_args), style="dim"))
    if report.output:
        children.append(Node(f"gave {pairs(report.output)}", style="dim"))
    if report.residue is not None:
        children.append(Node(f"residue: {clean(report.residue)}", style="yellow"))
    if report.error is not None:
        children.append(error_node(report.error))
    return Node(
        f"{report.step_id}  {report.tool}  {report.state}{number}",
        tuple(children),
        style=_STATE_STYLES.get(report.state, ""),
    )


def error_node(error: ErrorInfo) -> Node:
    """Draw an error: what happened, every wrong field, and what to do next."""
    fields = tuple(
        Node(
            f"{clean(field.path)}: {clean(field.message)}" if field.path else clean(field.message),
            ((Node(f"allowed: {clean(field.allowed)}"),) if field.allowed else ())
            + (
                (Node(f"example: {clean(json.dumps(field.example, ensure_ascii=False))}"),)
                if field.example is not None
                else ()
            ),
        )
        for field in error.fields
    )
    advice = (Node(f"next: {clean(error.suggestion)}"),) if error.suggestion else ()
    return Node(f"{error.code}: {clean(error.message)}", fields + advice, style="red")


def problem(envelope: Envelope) -> Node:
    """Draw an envelope that tells of no intent."""
    if envelope.error is None:
        return Node(f"{envelope.status_code} {envelope.status}")
    return error_node(envelope.error)


def facts(title: str, values: Mapping[str, Any], *, style: str = "bold") -> Node:
    """Draw named values, one a line; those that are None are left out."""
    return Node(
        title,
        tuple(Node(f"{name}: {clean(_word(value))}") for name, value in values.items() if value is not None),
        style=style,
    )


def taken(verb: str, step_id: str, arguments: JsonObject) -> str:
    """Say what a step takes; of a confirmation only what it confirms, whose arguments and answer it is given."""
    confirmed = confirms(step_id)
    return f"{verb} {pairs(arguments)}" if confirmed is None else f"confirms {confirmed}"


def pairs(values: JsonObject) -> str:
    """Write an object in one line."""
    return "  ".join(f"{clean(name)}={clean(_word(value))}" for name, value in values.items())


def exactly(values: JsonObject) -> tuple[Node, ...]:
    """Show every value whole, one a line; beside what is not ASCII stand its code points, against look-alikes."""
    shown: list[Node] = []
    for name, value in values.items():
        text = _CONTROL.sub(_code_point, json.dumps(value, ensure_ascii=False))
        points = json.dumps(value)
        shown.append(Node(f"{clean(name)}: {text}" + (f"  (code points: {points})" if not text.isascii() else "")))
    return tuple(shown)


def money(cents: int, currency: str = "") -> str:
    """Write an amount of a two-decimal currency."""
    sign, whole = "-" if cents < 0 else "", abs(cents)
    return f"{sign}{whole // 100:,}.{whole % 100:02d}{f' {currency}' if currency else ''}"


def clean(text: str) -> str:
    """Escape what could steer a terminal; cut what is endless."""
    cut = text if len(text) <= WIDTH_MAX else f"{text[:WIDTH_MAX]}..."
    return _CONTROL.sub(_code_point, cut)


def plain(view: View) -> str:
    """Write a view as text."""
    if isinstance(view, str):
        return f"{view}\n"
    if isinstance(view, Node):
        return "\n".join(_plain_lines(view, "")) + "\n"
    if not view.rows:
        return f"{view.empty}\n"
    cells = [view.headings, *view.rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(view.headings))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join(lines) + "\n"


def _code_point(found: re.Match[str]) -> str:
    return f"\\u{{{ord(found.group()):x}}}"


def _plain_lines(node: Node, indent: str) -> list[str]:
    lines = [indent + node.text]
    for child in node.children:
        lines += _plain_lines(child, f"{indent}  ")
    return lines


def _rich(view: View) -> Any:  # noqa: ANN401 - whatever rich prints
    from rich.table import Table as RichTable  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    if isinstance(view, str):
        return Text(view)
    if isinstance(view, Node):
        return _tree(view) if view.children else Text(view.text, style=view.style)
    if not view.rows:
        return Text(view.empty, style="dim")
    table = RichTable(box=None, header_style="bold", pad_edge=False)
    for heading in view.headings:
        table.add_column(heading, no_wrap=heading != view.headings[-1])
    for row in view.rows:
        table.add_row(*(Text(cell, overflow="fold") for cell in row))
    return table


def _tree(node: Node) -> "Tree":
    from rich.text import Text  # noqa: PLC0415 - as above
    from rich.tree import Tree  # noqa: PLC0415 - as above

    root = Tree(Text(node.text, style=node.style), guide_style="dim")
    _hang(root, node.children)
    return root


def _hang(branch: "Tree", nodes: Sequence[Node]) -> None:
    from rich.text import Text  # noqa: PLC0415 - as above

    for node in nodes:
        _hang(branch.add(Text(node.text, style=node.style)), node.children)


def _word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))

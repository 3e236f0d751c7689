"""What the audience sees: scenes with one sentence each, trees of sagas, commands as they were typed, facts.

On a terminal a tree is redrawn while its saga runs; elsewhere (a log, a pipe) everything comes once, in order, as
plain text of 80 columns. Colours follow NO_COLOR; nothing is told by colour alone.
"""

from __future__ import annotations

import textwrap
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.live import Live
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from rich.console import RenderableType

    from worker.demo.processes import Answer

WIDTH_MAX: Final = 80
OUTPUT_LINES_MAX: Final = 14
MARKS: Final = {"ok": ("✓", "+", "green"), "VIOLATED": ("✗", "!", "red"), "not yet": ("·", "-", "yellow")}
LABEL_WIDTH: Final = max(map(len, MARKS))


class Screen:
    """Everything that is printed goes through here."""

    def __init__(self, console: Console | None = None) -> None:
        """Print to standard output, or to the console that is given."""
        self._console = console or Console(highlight=False, emoji=False)
        self._console.width = min(self._console.width, WIDTH_MAX)
        self._ascii = self._console.options.ascii_only
        self._has_gap = False

    def opening(self, title: str, sentence: str) -> None:
        """Say what this is."""
        self._print(Text(title, "bold"))
        self._say(sentence)

    def note(self, text: str, *, apart: bool = True) -> None:
        """Say something beside the story; `apart`: after an empty line."""
        if apart:
            self._gap()
        self._say(text, "dim", indent=2)

    def log(self, title: str, text: str) -> None:
        """Show the end of a log, as it is."""
        self._gap()
        self._print(Text(title, "bold"))
        self._console.print(text, style="dim", markup=False, soft_wrap=True)

    def scene(self, number: int, title: str, sentence: str) -> None:
        """Begin a scene: what it shows and why that matters, in one sentence."""
        head = f"{number}  {title}" if number else title
        self._gap()
        self._print(Rule(Text(head, "bold cyan"), align="left", style="cyan"))
        self._say(sentence, "italic")
        self._gap()

    @contextmanager
    def live(self) -> Generator[Callable[[RenderableType], None]]:
        """Yield a function that draws something in place of what it drew before; only the last drawing stays.

        Where nothing can be redrawn, only the last one is drawn, when the block ends without an error.
        """
        self._gap()
        self._has_gap = False
        last: list[RenderableType] = []
        if not self._console.is_terminal:
            yield last.append
            for drawing in last[-1:]:
                self._block(drawing)
            return
        with Live(console=self._console, auto_refresh=False, vertical_overflow="visible") as live:
            yield lambda drawing: live.update(_indented(drawing), refresh=True)

    def command(self, answer: Answer) -> None:
        """Show a command as it was typed, and what it printed."""
        self._gap()
        self._say(f"$ {answer.command}", "bold", indent=2, hanging=2)
        lines = answer.output.splitlines()
        for line in lines[:OUTPUT_LINES_MAX] + ["..."] * (len(lines) > OUTPUT_LINES_MAX):
            self._say(line.strip(), "dim", indent=2 + len(line) - len(line.lstrip()), hanging=2)
        self._gap()

    def fact(self, text: str) -> None:
        """State what the tables say, after it was held against what was promised."""
        self._marked("ok", text)

    def verdict(self, status: str, text: str) -> None:
        """Tell what became of an invariant: ok, VIOLATED or not yet."""
        self._marked(status, text, status)

    def ending(self, text: str, *, good: bool) -> None:
        """Print the last line, whole: it is read by programs."""
        self._gap()
        self._console.print(Text(text, "bold green" if good else "bold red"), soft_wrap=True)

    def _block(self, drawing: RenderableType) -> None:
        """Print something without blanks at the ends of lines."""
        with self._console.capture() as captured:
            self._console.print(_indented(drawing))
        for line in captured.get().splitlines():
            self._console.file.write(f"{line.rstrip()}\n")

    def _say(self, text: str, style: str = "", *, indent: int = 0, hanging: int = 0) -> None:
        """Print a paragraph, wrapped without blanks at the ends of lines."""
        first, others = " " * indent, " " * (indent + hanging)
        for line in textwrap.wrap(text, self._console.width, initial_indent=first, subsequent_indent=others):
            self._print(Text(line, style))

    def _print(self, *lines: RenderableType) -> None:
        self._console.print(*lines)
        self._has_gap = False

    def _gap(self) -> None:
        """Print one empty line, unless there is one."""
        if not self._has_gap:
            self._console.print()
        self._has_gap = True

    def _marked(self, status: str, text: str, label: str = "") -> None:
        mark, plain, colour = MARKS[status]
        head = f"  {plain if self._ascii else mark} {label and f'{label:<{LABEL_WIDTH}} '}"
        lines = textwrap.wrap(text, self._console.width - len(head)) or [""]
        self._print(Text.assemble((head, colour), lines[0]))
        for line in lines[1:]:
            self._print(Text(" " * len(head) + line))


def _indented(drawing: RenderableType) -> RenderableType:
    return Padding(drawing, (0, 0, 0, 2), expand=False)

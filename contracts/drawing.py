"""A proof as a picture: Mermaid for what renders it, and an SVG that stands by itself, light or dark.

Steps stand in rows, each below what it waits for. A card says what kind of step it is and, for each fault, which way
the saga goes from there; the dashed lines are the way back.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from contracts.ends import Fault, Way
from contracts.prefixes import bits, mask_of
from contracts.proof import Proof, ProvedStep
from contracts.tool import SideEffect

CARD: Final = (300, 108)
GAP: Final = (36, 70)
MARGIN: Final = 36
HEAD: Final = 96
FOOT: Final = 64
CARDS_PER_ROW_MAX: Final = 5
_NAME_LENGTH_MAX: Final = 24
_TOOL_LENGTH_MAX: Final = 31
_CHIPS: Final = (
    (0, "refused", (Fault.REFUSED,)),
    (64, "unknown", (Fault.UNKNOWN_LANDED, Fault.UNKNOWN_NOT_LANDED)),
    (142, "crash", (Fault.CRASH,)),
    (200, "cancel", (Fault.CANCEL,)),
)
_DOT: Final = 7
_COLOURS: Final = (
    ("on", {Way.FORWARD, Way.INSTEAD, Way.FIRST}),
    ("back", {Way.BACK, Way.BACK_WITH}),
    ("rest", {Way.STUCK, Way.HELD, Way.HELD_BACK, Way.HALTED}),
)
_STYLE: Final = """
#ID{color-scheme:light dark;--paper:#fbfaf8;--card:#ffffff;--ink:#1c2430;--soft:#667085;--line:#94a0b0;
--edge:#e3e6ea;--undo:#0e7c66;--pivot:#c2410c;--read:#64748b;--on:#0e7c66;--back:#2563eb;--rest:#c2410c;
--bad:#b42318;--none:#c5ccd5;font-family:ui-sans-serif,system-ui,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
@media (prefers-color-scheme:dark){#ID{--paper:#12161c;--card:#1b212a;--ink:#e8ecf1;--soft:#9aa5b4;--line:#5d6a7b;
--edge:#2c3542;--undo:#4fd1a8;--pivot:#fb923c;--read:#8b98a9;--on:#4fd1a8;--back:#7aa7ff;--rest:#fb923c;
--bad:#f97066;--none:#465061}}
#ID text{fill:var(--ink);font-size:12px}#ID .paper{fill:var(--paper)}#ID .soft{fill:var(--soft)}
#ID .title{font-size:19px;font-weight:600}#ID .name{font-size:14.5px;font-weight:600}
#ID .tool{font:11.5px ui-monospace,SFMono-Regular,Menlo,monospace;fill:var(--soft)}
#ID .tag{font-size:11px;font-weight:600}#ID .chip{font-size:10.5px;fill:var(--soft)}
#ID .pill{font-weight:600;fill:var(--paper)}#ID .shade{fill:var(--ink);opacity:.05}
#ID .card{fill:var(--card);stroke:var(--edge)}#ID .rule{stroke:var(--edge)}
#ID .undo{fill:var(--undo)}#ID .pivot{fill:var(--pivot)}#ID .read{fill:var(--read)}#ID .bad{fill:var(--bad)}
#ID .on{fill:var(--on)}#ID .back{fill:var(--back)}#ID .rest{fill:var(--rest)}#ID .none{fill:var(--none)}
#ID .forth{fill:none;stroke:var(--line);stroke-width:1.75}#ID .tip-forth{fill:var(--line)}
#ID .way-back{fill:none;stroke:var(--back);stroke-width:1.5;stroke-dasharray:2 5;stroke-linecap:round}
#ID .tie{fill:none;stroke:var(--back);opacity:.6}#ID .tip-back{fill:var(--back)}
"""


@dataclass(frozen=True)
class _Place:
    """Where a card stands: its upper left corner."""

    x: float
    y: float

    @property
    def middle(self) -> float:
        """Half-way across."""
        return self.x + CARD[0] / 2

    @property
    def below(self) -> float:
        """Its lower edge."""
        return self.y + CARD[1]


def mermaid(proof: Proof) -> str:
    """Draw the proof as a Mermaid flow chart: the way forth, and dashed the order of the way back."""
    told = ["flowchart TB"]
    for number, step in enumerate(proof.steps):
        text = f"<b>{step.step_id}</b><br/>{step.tool}<br/>{_tag(step, past=_is_past(proof, number))}"
        left, right = ('[["', '"]]') if step.is_pivot else ('("', '")') if step.writes else ('>"', '"]')
        told.append(f"  s{number}{left}{text}{right}:::{_kind(step)}")
    told += [f"  s{early} --> s{late}" for early, late in _edges(proof)]
    told += [f"  s{late} -. undone before .-> s{early}" for early, late in _backs(proof)]
    told += [f"  s{first} -. if it does not land .-> s{other}" for first, other in _instead(proof)]
    index = {step.step_id: number for number, step in enumerate(proof.steps)}
    told += [f"  s{index[one]} -. later one first .- s{index[other]}" for one, other in proof.ties]
    told += [
        "  classDef undo stroke:#0e7c66,stroke-width:2px",
        "  classDef pivot stroke:#c2410c,stroke-width:3px",
        "  classDef read stroke:#64748b,stroke-dasharray:4 3",
    ]
    return "\n".join(told) + "\n"


def svg(proof: Proof) -> str:
    """Draw the proof as an SVG document of its own."""
    name = f"backstay-{proof.digest[:12]}"
    places, width, height = _layout(proof)
    title = f"{proof.intent_id}: {len(proof.steps)} steps, {'sound' if proof.sound else 'not sound'}"
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    labels = f'role="img" aria-labelledby="{name}-t {name}-d"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" id="{name}" {size} {labels}>',
        f'<title id="{name}-t">{title}</title>',
        f'<desc id="{name}-d">{escape("; ".join(_told(step) for step in proof.steps))}.</desc>',
        f"<style>{_STYLE.replace('ID', name)}</style>",
        "<defs>",
        *(_tip(f"{name}-{kind}", kind) for kind in ("forth", "back")),
        "</defs>",
        f'<rect class="paper" width="{width:g}" height="{height:g}" rx="14"/>',
        *_head(proof, width),
        *_lines(proof, places, name),
        *(line for number, place in enumerate(places) for line in _card(proof, number, place)),
        *_foot(width, height),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _layout(proof: Proof) -> tuple[list[_Place], float, float]:
    """Put each step below all that it waits for, long rows broken, and each near what it waits for."""
    depth: list[int] = []
    for needs in proof.order.needs:
        depth.append(1 + max((depth[need] for need in bits(needs)), default=-1))
    rows: list[list[int]] = []
    column: dict[int, float] = {}
    for level in range(max(depth) + 1):
        here = [number for number, at in enumerate(depth) if at == level]
        here.sort(key=lambda number: (_centre(proof, number, column), number))
        for start in range(0, len(here), CARDS_PER_ROW_MAX):
            row = here[start : start + CARDS_PER_ROW_MAX]
            rows.append(row)
            column |= {number: place - (len(row) - 1) / 2 for place, number in enumerate(row)}
    across = max(2, *(len(row) for row in rows))
    width = 2 * MARGIN + across * CARD[0] + (across - 1) * GAP[0]
    places: dict[int, _Place] = {}
    for line, row in enumerate(rows):
        for number in row:
            x = width / 2 + column[number] * (CARD[0] + GAP[0]) - CARD[0] / 2
            places[number] = _Place(x, HEAD + line * (CARD[1] + GAP[1]))
    height = HEAD + len(rows) * (CARD[1] + GAP[1]) - GAP[1] + FOOT
    return [places[number] for number in range(len(proof.steps))], width, height


def _centre(proof: Proof, number: int, column: dict[int, float]) -> float:
    above = [column[need] for need in bits(proof.order.needs[number])]
    return sum(above) / len(above) if above else 0.0


def _head(proof: Proof, width: float) -> Iterator[str]:
    verdict, colour = ("sound", "undo") if proof.sound else ("not sound", "bad")
    wide = 18 + 7.2 * len(verdict)
    many = "" if proof.complete else "more than "
    prefixes = f"{many}{len(proof.prefixes)} failure prefixes, 5 faults at each step"
    yield f'<text class="title" x="{MARGIN}" y="45">A plan of {len(proof.steps)} steps</text>'
    yield f'<text class="soft" x="{MARGIN}" y="68">{proof.intent_id} \u00b7 {prefixes}</text>'
    yield f'<rect class="{colour}" x="{width - MARGIN - wide:g}" y="28" width="{wide:g}" height="24" rx="12"/>'
    yield f'<text class="pill" x="{width - MARGIN - wide / 2:g}" y="44.5" text-anchor="middle">{verdict}</text>'


def _lines(proof: Proof, places: Sequence[_Place], name: str) -> Iterator[str]:
    """Draw the way forth down the middle of cards, the way back beside it."""
    backs = _backs(proof)
    for early, late in _edges(proof):
        yield _curve("forth", places[early], places[late], 0, f"{name}-forth")
    for early, late in backs:
        yield _curve("way-back", places[late], places[early], -30, f"{name}-back")
    for step, fallback in _instead(proof):
        start, end = places[step], places[fallback]
        yield f'<path class="forth" stroke-dasharray="5 4" d="{_across(start, end)}" marker-end="url(#{name}-forth)"/>'
    index = {step.step_id: number for number, step in enumerate(proof.steps)}
    for one, other in proof.ties:
        a, b = places[index[one]], places[index[other]]
        middle, low = (a.middle + b.middle) / 2, max(a.below, b.below) + 26
        yield f'<path class="tie" d="M{a.middle:g} {a.below:g}Q{middle:g} {low:g} {b.middle:g} {b.below:g}"/>'


def _across(start: _Place, end: _Place) -> str:
    """Go from one card to the one beside it; to another row where a long one was broken."""
    x1, x2 = (start.x + CARD[0], end.x) if end.x > start.x else (start.x, end.x + CARD[0])
    return f"M{x1:g} {start.y + CARD[1] / 2:g}L{x2:g} {end.y + CARD[1] / 2:g}"


def _curve(kind: str, start: _Place, end: _Place, shift: float, tip: str) -> str:
    y1, y2 = (start.below, end.y) if end.y > start.y else (start.y, end.below)
    x1, x2, bend = start.middle + shift, end.middle + shift, (y2 - y1) / 2
    path = f"M{x1:g} {y1:g}C{x1:g} {y1 + bend:g} {x2:g} {y2 - bend:g} {x2:g} {y2:g}"
    return f'<path class="{kind}" d="{path}" marker-end="url(#{tip})"/>'


def _card(proof: Proof, number: int, place: _Place) -> Iterator[str]:
    step, x, y = proof.steps[number], place.x, place.y
    is_broken = any(step.step_id in check.path for check in proof.broken)
    past = _is_past(proof, number)
    kind, tag = ("bad", "breaks a rule") if is_broken else (_kind(step), _tag(step, past=past))
    faults = step.faults_past_pivot if past else step.faults
    size, right = f'width="{CARD[0]}" height="{CARD[1]}" rx="12"', x + CARD[0] - 18
    yield f"<g><title>{escape(_told(step))}</title>"
    yield f'<rect class="shade" x="{x + 1:g}" y="{y + 3:g}" {size}/><rect class="card" x="{x:g}" y="{y:g}" {size}/>'
    yield f'<path class="{kind}" d="M{x + 6:g} {y:g}q-6 4 -6 12v{CARD[1] - 24}q0 8 6 12z"/>'
    yield f'<text class="name" x="{x + 22:g}" y="{y + 29:g}">{_short(step.step_id, _NAME_LENGTH_MAX)}</text>'
    yield f'<text class="tag {kind}" x="{right:g}" y="{y + 28.5:g}" text-anchor="end">{tag}</text>'
    yield f'<text class="tool" x="{x + 22:g}" y="{y + 50:g}">{_short(step.tool, _TOOL_LENGTH_MAX)}</text>'
    yield f'<path class="rule" d="M{x + 22:g} {y + 67:g}H{right:g}"/>'
    for at, label, which in _CHIPS:
        yield from _chip(x + 26 + at, y + 89, label, {way for fault in which for way in faults[fault]})
    yield "</g>"


def _chip(x: float, y: float, label: str, ways: set[Way]) -> Iterator[str]:
    """Show one fault: a dot for each colour of way that the saga may take."""
    colours = [colour for colour, of in _COLOURS if ways & of] or ["none"]
    for place, colour in enumerate(colours):
        yield f'<circle class="{colour}" cx="{x + place * _DOT:g}" cy="{y - 3.5:g}" r="3.5"/>'
    yield f'<text class="chip" x="{x + 1 + _DOT * len(colours):g}" y="{y:g}">{label}</text>'


def _foot(width: float, height: float) -> Iterator[str]:
    y = height - 24
    yield f'<path class="rule" d="M{MARGIN} {y - 20:g}H{width - MARGIN:g}"/>'
    x = float(MARGIN)
    dots = (("on", "goes on"), ("back", "goes back"), ("rest", "a person decides"), ("none", "cannot happen"))
    for kind, text in dots:
        yield f'<circle class="{kind}" cx="{x + 4:g}" cy="{y - 3.5:g}" r="3.5"/>{_small(x + 12, y, text)}'
        x += 26 + 6 * len(text)
    for kind, text in (("forth", "then"), ("way-back", "undone before")):
        yield f'<path class="{kind}" d="M{x:g} {y - 3.5:g}h24"/>{_small(x + 30, y, text)}'
        x += 44 + 6 * len(text)


def _small(x: float, y: float, text: str) -> str:
    return f'<text class="chip" x="{x:g}" y="{y:g}">{text}</text>'


def _tip(name: str, kind: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path class="tip-{kind}" d="M0 .5L8 4L0 7.5L2 4z"/></marker>'
    )


def _edges(proof: Proof) -> list[tuple[int, int]]:
    """Pair each step with what it waits for, without what another need implies."""
    order = proof.order
    return [
        (place, number)
        for number, needs in enumerate(order.needs)
        for need in bits(needs)
        if not any(order.before[other] >> need & 1 for other in bits(needs))
        for place in bits(order.places[need])
    ]


def _instead(proof: Proof) -> list[tuple[int, int]]:
    """Pair each step with its fallback."""
    index = {step.step_id: number for number, step in enumerate(proof.steps)}
    return [(index[step.stands_for], index[step.step_id]) for step in proof.steps if step.stands_for is not None]


def _backs(proof: Proof) -> list[tuple[int, int]]:
    """Pair each step that is undone with the nearest that is undone before it."""
    order = proof.order
    undoable = mask_of(
        number for number in bits(order.writes & ~order.irreversible) if not order.before[number] & order.irreversible
    )
    found: list[tuple[int, int]] = []
    for late in bits(undoable):
        before = order.before[late] & undoable
        nearest = [one for one in bits(before) if not any(order.before[other] >> one & 1 for other in bits(before))]
        found += [(early, late) for early in nearest]
    return found


def _is_past(proof: Proof, number: int) -> bool:
    """True when the step runs only after the pivot."""
    return proof.order.is_past(number)


def _kind(step: ProvedStep) -> str:
    return {SideEffect.READ_ONLY: "read", SideEffect.REVERSIBLE: "undo", SideEffect.IRREVERSIBLE: "pivot"}[
        step.side_effect
    ]


def _tag(step: ProvedStep, *, past: bool = False) -> str:
    if not step.writes:
        return "reads only"
    if step.is_pivot:
        return "pivot" if step.may_refuse else "for good"
    return "only forward" if past else "can be undone"


def _told(step: ProvedStep) -> str:
    after = f"after {', '.join(step.needs)}" if step.needs else "first"
    if step.stands_for is not None:
        after = f"only if {step.stands_for} certainly does not land"
    undone = f"; undone: {step.undone_by}" if step.undone_by else ""
    return f"{step.step_id}: {step.tool}, {after}, {_tag(step)}{undone}"


def _short(text: str, at_most: int) -> str:
    return escape(text if len(text) <= at_most else f"{text[: at_most - 1]}\u2026")

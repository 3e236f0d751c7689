"""A proof as table, Markdown, Mermaid and SVG: what is shown is what was proved, whatever the steps are called."""

import re
from xml.etree import ElementTree as ET

import pytest

from contracts import table
from contracts.drawing import CARDS_PER_ROW_MAX, mermaid, svg
from contracts.proof import Proof, prove
from tests.support.plans import plan
from tests.support.proofs import CONTRACTS, graph, made

DIAMOND = graph(
    a="undo_keyed_remote",
    b="undo_local_note after a",
    r="read_local_note after a",
    p="pay_lost_remote after b r",
    z="undo_sure_note after p",
)
SVG = "{http://www.w3.org/2000/svg}"


def proof() -> Proof:
    return prove(DIAMOND, CONTRACTS)


def local() -> Proof:
    return prove(graph(a="undo_local_note", b="undo_local_note after a"), CONTRACTS)


def drawn(proved: Proof) -> ET.Element:
    return ET.fromstring(svg(proved))  # noqa: S314 - our own text


def test_the_table_has_a_line_for_each_step_that_may_run_after_each_prefix() -> None:
    rows, left_out = table.lines(local())

    assert table.headings(local()) == ("landed", "running", "refused", "crash", "cancel")
    assert (rows, left_out) == (
        (
            ("nothing", "a", "NOT_APPLIED", "COMMITTED", "NOT_APPLIED or COMPENSATED (a)"),
            ("a", "b", "COMPENSATED (a)", "COMMITTED", "COMPENSATED (a) or COMPENSATED (b, then a)"),
        ),
        0,
    )


def test_where_an_outcome_may_be_unknown_the_table_says_so() -> None:
    rows, _ = table.lines(proof())

    (first,) = [row for row in rows if row[:2] == ("nothing", "a")]
    (pivot,) = [row for row in rows if row[1] == "p"]
    assert table.headings(proof())[3:5] == ("unknown, landed", "unknown, not landed")
    assert first[4] == "COMMITTED or NOT_APPLIED or PARKED OUTCOME_UNKNOWN (unknown: a)"
    assert pivot[3] == "PARKED OUTCOME_UNKNOWN (stays: a, b; unknown: p)"
    assert {row[3] for row in rows if row[1] in ("b", "r", "z")} == {"-"}


def test_lines_that_are_left_out_are_counted() -> None:
    wide = prove(plan(*(made(f"s{number}", "undo_local_note") for number in range(10))), CONTRACTS)

    rows, left_out = table.lines(wide, at_most=7)

    assert len(rows) == 7
    assert left_out == sum(len(list(wide.order.startable(mask))) for mask in wide.prefixes) - 7
    assert table.notes(wide)[0].startswith("more than 300 prefixes")


def test_markdown_holds_every_check_and_every_line() -> None:
    text = table.markdown(proof())

    rows, _ = table.lines(proof())
    assert all(f"| {' | '.join(row)} |" in text for row in rows)
    assert all(table.check_text(check) in text for check in proof().checks)
    assert f"digest `{proof().digest}`" in text


def test_mermaid_draws_each_step_the_way_forth_and_the_way_back() -> None:
    text = mermaid(proof())

    assert re.findall(r"s(\d) --> s(\d)", text) == [("0", "1"), ("0", "2"), ("1", "3"), ("2", "3"), ("3", "4")]
    assert re.findall(r"s(\d) -\. undone before \.-> s(\d)", text) == [("1", "0")]
    assert '  s3[["<b>p</b><br/>pay_lost_remote@1<br/>pivot"]]:::pivot' in text
    assert "only forward" in text


def test_the_svg_is_well_formed_and_says_each_step_also_to_those_who_do_not_see_it() -> None:
    picture = drawn(proof())

    told = picture.findtext(f"{SVG}desc") or ""
    names = [text.text for text in picture.iter(f"{SVG}text") if text.get("class") == "name"]
    assert names == ["a", "b", "r", "p", "z"]
    assert [f"{step.step_id}: {step.tool}" in told for step in proof().steps] == [True] * 5
    assert len(picture.findall(f"{SVG}path[@class='forth']")) == 6  # one of them explains itself at the foot


def test_cards_never_overlap_and_stand_below_what_they_wait_for() -> None:
    wide = plan(
        *(made(f"s{number}", "undo_local_note") for number in range(2 * CARDS_PER_ROW_MAX)),
        made("last", "undo_local_note", ["s0", "s9"]),
    )

    cards = [rect for rect in drawn(prove(wide, CONTRACTS)).iter(f"{SVG}rect") if rect.get("class") == "card"]
    corners = [(float(card.get("x", "")), float(card.get("y", ""))) for card in cards]
    width, height = (float(cards[0].get(name, "")) for name in ("width", "height"))

    for number, (x, y) in enumerate(corners):
        for other_x, other_y in corners[:number]:
            assert abs(x - other_x) >= width or abs(y - other_y) >= height
    assert max(y for _, y in corners[:-1]) < corners[-1][1]


@pytest.mark.parametrize("hostile", ["<script>", "a&b", '"]]', "x" * 48])
def test_whatever_a_step_is_called_the_picture_stays_well_formed(hostile: str) -> None:
    named = plan(made("a", "undo_local_note").model_copy(update={"step_id": hostile}))

    picture = drawn(prove(named, CONTRACTS))

    (shown,) = [text.text or "" for text in picture.iter(f"{SVG}text") if text.get("class") == "name"]
    assert hostile.startswith(shown.removesuffix("\u2026"))


def test_two_pictures_on_one_page_do_not_share_their_names() -> None:
    one, other = (set(re.findall(r' id="([^"]+)"', svg(proved))) for proved in (proof(), local()))

    assert not one & other

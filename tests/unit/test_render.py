"""How answers look: the same words on a terminal and in a pipe, and no text of an agent steers either."""

import io

import pytest
from rich.console import Console

from contracts.base import JsonObject
from contracts.envelope import (
    Cause,
    Envelope,
    IntentReport,
    Meta,
    Outcome,
    Status,
    StepReport,
    StepState,
    intent_envelope,
)
from contracts.errors import FieldProblem, SagaError
from contracts.reasons import Reason
from worker.check import parse
from worker.cli.render import (
    Node,
    Table,
    clean,
    error_node,
    exactly,
    fitted,
    money,
    plain,
    problem,
    saga,
    show,
    tree_of,
)
from worker.cli.views import tools

REPORT = IntentReport(
    outcome=Outcome.COMPENSATED,
    cause=Cause.REFUSED,
    steps=(
        StepReport(
            step_id="freeze",
            tool="freeze_account_funds@1",
            state=StepState.COMPENSATED,
            step_key="k/freeze/execute",
            transaction_id=7,
            applied_args={"memo": "red \x1b[31m"},
            output={"hold_id": "H1"},
            residue="a fee",
        ),
        StepReport(
            step_id="debit",
            tool="debit_frozen_funds@1",
            state=StepState.REFUSED,
            error=SagaError(Reason.FUNDS_INSUFFICIENT, "too little").info,
        ),
    ),
)


def test_a_saga_shows_state_key_transaction_output_and_residue() -> None:
    envelope = intent_envelope(REPORT, None, Meta(intent_id="int_x", duplicate=True))

    text = plain(saga(envelope))

    assert text.splitlines()[0] == "int_x  COMPENSATED  refused  (the answer to an earlier post of the same intent)"
    for part in ("freeze_account_funds@1  COMPENSATED  #7", "key k/freeze/execute", "gave hold_id=H1"):
        assert part in text
    assert "residue: a fee" in text
    assert "FUNDS_INSUFFICIENT: too little" in text


def test_a_terminal_and_a_pipe_say_the_same_and_escapes_stay_text() -> None:
    envelope = intent_envelope(REPORT, None, Meta(intent_id="int_x"))
    file = io.StringIO()

    Console(file=file, width=200, force_terminal=False).print(tree_of(envelope))
    console_text = file.getvalue()

    assert "\x1b" not in plain(saga(envelope)) + console_text
    for line in plain(saga(envelope)).splitlines():
        assert line.strip() in console_text


def test_foreign_text_is_escaped_and_cut() -> None:
    assert clean("a\x1b[2J\u202eb\n") == "a\\u{1b}[2J\\u{202e}b\\u{a}"
    assert len(clean("x" * 10_000)) < 500


def test_an_approver_sees_every_value_whole_and_the_code_points_of_look_alikes() -> None:
    long = "x" * 5_000

    shown = [node.text for node in exactly({"payee": "p\u0430ypal\u202e", "memo": long, "amount_cents": 5})]

    assert shown[0] == 'payee: "p\u0430ypal\\u{202e}"  (code points: "p\\u0430ypal\\u202e")'
    assert long in shown[1]
    assert shown[2] == "amount_cents: 5"


def test_a_table_is_aligned_and_an_empty_one_speaks() -> None:
    assert plain(Table(("a", "bb"), (("ccc", "d"),))) == "a    bb\nccc  d\n"
    assert plain(Table(("a",), (), empty="nothing here")) == "nothing here\n"


def test_a_table_that_is_too_wide_becomes_a_list_with_whole_ids() -> None:
    intent_id = "int_" + "a" * 26
    table = Table(("intent", "session", "cause", "tools"), ((intent_id, "chat-4711", "", "some_tool@1"),))

    assert tuple(fitted(table, 80)) == (table,)
    (listed,) = fitted(table, 40)

    assert plain(listed).splitlines() == [intent_id, "  session: chat-4711", "  tools: some_tool@1"]


def test_an_example_is_json_and_a_problem_of_the_whole_body_has_no_path() -> None:
    field = FieldProblem(path="steps[0]", code="missing", message="Missing.", example={"needs": None, "ok": True})
    whole = FieldProblem(path="", code="body_malformed", message="The body is not JSON.", example="x")

    shown = plain(error_node(SagaError(Reason.BODY_MALFORMED, "Wrong.", fields=(field, whole)).info)).splitlines()

    assert '    example: {"needs": null, "ok": true}' in shown
    assert "  The body is not JSON." in shown


def test_a_field_that_may_be_null_keeps_its_description() -> None:
    spec = {"properties": {"memo": {"anyOf": [{"type": "string", "description": "A note."}, {"type": "null"}]}}}

    assert "    memo  (optional): A note." in tool_lines(spec)


def test_a_tool_shows_its_least_level_and_duty_and_the_words_that_its_fields_take() -> None:
    colour: JsonObject = {"enum": ["RED", "BLUE"], "type": "string"}
    properties = {
        "one": {"$ref": "#/$defs/Colour", "description": "Its colour."},
        "perhaps": {"anyOf": [{"$ref": "#/$defs/Colour"}, {"type": "null"}]},
        "several": {"type": "array", "items": {"$ref": "#/$defs/Colour"}},
        "only": {"const": "GREEN"},
        "any": {"type": "string"},
    }

    lines = tool_lines({"properties": properties, "required": list(properties), "$defs": {"Colour": colour}})

    assert "  level L2, duty NONE, at least: arguments can lift both" in lines
    assert [line.strip() for line in lines if "one of" in line] == ["one of RED, BLUE"] * 3 + ["one of GREEN"]


def tool_lines(spec: JsonObject) -> list[str]:
    tool: JsonObject = {"tool": "t@1", "side_effect": "REVERSIBLE", "title": "T", "description": "D", "reasons": []}
    data: JsonObject = {**tool, "input": spec, "output": {}, "compensates_by": None, "level": 2, "duty": "NONE"}
    (node,) = tools(Envelope(status_code=200, status=Status.SUCCESS, data=data))
    assert isinstance(node, Node)
    return plain(node).splitlines()


def test_a_printed_table_that_is_wider_than_it_may_be_becomes_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    cells = (("freeze", "COMPENSATED (freeze)"),)

    show([Table(("landed", "refused"), cells, width_max=30), Table(("landed", "refused"), cells, width_max=20)])

    assert capsys.readouterr().out.splitlines() == [
        "landed  refused",
        "freeze  COMPENSATED (freeze)",
        "freeze",
        "  refused: COMPENSATED (freeze)",
    ]


def test_an_error_that_a_step_said_is_shown_once_also_when_the_end_left_something_else() -> None:
    error = REPORT.steps[1].error

    assert plain(saga(intent_envelope(REPORT, error, Meta(intent_id="int_x")))).count("too little") == 1


def test_money_has_two_decimals() -> None:
    assert [money(0), money(-5), money(123_456_789, "EUR")] == ["0.00", "-0.05", "1,234,567.89 EUR"]


def test_an_error_without_an_intent_names_the_next_step() -> None:
    error = SagaError(Reason.INTENT_NOT_FOUND, "There is no intent int_y.")
    envelope = intent_envelope(IntentReport(outcome=Outcome.NOT_APPLIED), error.info, Meta()).model_copy(
        update={"data": None}
    )

    assert plain(problem(envelope)).splitlines() == [
        "INTENT_NOT_FOUND: There is no intent int_y.",
        f"  next: {Reason.INTENT_NOT_FOUND.suggestion}",
    ]


def test_the_file_of_invariants_is_split_into_statements_and_what_is_not_yet_checked() -> None:
    invariants, not_yet = parse(
        "-- a preface\n-- name: one\n-- why\nselect 1\nwhere false;\n-- not yet: later\n-- name: two\nselect 2;\n"
    )

    assert [(one.name, one.statement) for one in invariants] == [
        ("one", "-- why\nselect 1\nwhere false"),
        ("two", "select 2"),
    ]
    assert not_yet == ("later",)

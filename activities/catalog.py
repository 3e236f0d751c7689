"""Finding the tool packs: the modules of `activities.packs`, modules named in the settings, and entry points.

A wrong pack dies here, at start-up, with a message that says what to change.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

from psycopg import DatabaseError

from activities import packs as own_packs
from activities.database import Database
from activities.tool import AnyRemoteTool, AnyTool, Compensated, DownstreamPack, Pack, RemoteTool, Tool
from contracts.planning import ObjectState
from contracts.registry import Registry
from contracts.tool import Dispatch, Idempotency, SideEffect, WhenMoved

ENTRY_POINT_GROUP: Final = "backstay.packs"
_COLUMNS: Final = frozenset(field.name for field in fields(ObjectState))
_OPTIONAL_COLUMNS: Final = frozenset(field.name for field in fields(ObjectState) if field.default is not MISSING)
_PARAMETERS: Final = {"execute": 3, "compensate": 4, "verify": 4, "confirm": 4}
_REMOTE_PARAMETERS: Final = {"execute": 2, "lookup": 2, "compensate": 3, "cancel_by_key": 2, "verify": 3}


class PackError(ValueError):
    """A pack is wrong; the text says what to change, line by line."""


def load_packs(modules: Iterable[str] = (), addresses: Mapping[str, str] = MappingProxyType({})) -> tuple[Pack, ...]:
    """Import every pack and check it. Raises PackError naming all that is wrong.

    A pack that needs a downstream is left out where `addresses` does not have it: no tool may be offered that cannot
    be carried out.
    """
    names = [f"{own_packs.__name__}.{found.name}" for found in pkgutil.iter_modules(own_packs.__path__)]
    names += list(modules)
    found = [_pack_of(name) for name in sorted(set(names), key=names.index)]
    found += [_checked_type(point.value, point.load()) for point in entry_points(group=ENTRY_POINT_GROUP)]
    packs = [made for pack in found if (made := _with_downstream(pack, addresses)) is not None]
    check_packs(packs)
    return tuple(packs)


def check_packs(packs: Iterable[Pack]) -> None:
    """Refuse packs whose contracts, handlers or resources do not fit together. Raises PackError."""
    packs = list(packs)
    problems: list[str] = []
    kinds: dict[str, str] = {}
    for pack in packs:
        for kind in pack.resources:
            if kind in kinds:
                problems.append(f"{pack.name}: resource {kind!r} is already brought by {kinds[kind]}; rename it.")
            kinds[kind] = pack.name
    for pack in packs:
        given = cast("tuple[object, ...]", pack.tools)  # authors without a type checker put anything there
        if strange := [type(tool).__name__ for tool in given if not isinstance(tool, Tool | RemoteTool)]:
            raise PackError(f"{pack.name}: tools holds {', '.join(strange)}; wrap each contract in Tool(contract=...).")
        for tool in pack.tools:
            problems += [f"{pack.name}: {tool.contract.name}: {problem}" for problem in _tool_problems(tool, kinds)]
    try:
        Registry.of([tool.contract for pack in packs for tool in pack.tools])
    except ValueError as error:
        problems.append(str(error))
    if problems:
        raise PackError("\n".join(problems))


async def check_resources(database: Database, packs: Iterable[Pack]) -> None:
    """Ask every resource query for nothing and look at its columns. Raises PackError naming all that is wrong.

    A query that admission cannot read would refuse every intent that names such an object.
    """
    problems: list[str] = []
    for pack in packs:
        for kind, query in pack.resources.items():
            try:
                found = await database.columns(query, ([],))
            except DatabaseError as error:
                problems.append(f"{pack.name}: resource {kind!r}: the query fails: {str(error).partition(chr(10))[0]}.")
                continue
            if missing := sorted(_COLUMNS - _OPTIONAL_COLUMNS - set(found)):
                problems.append(f"{pack.name}: resource {kind!r}: the query lacks {', '.join(missing)}.")
            if unknown := sorted(set(found) - _COLUMNS):
                problems.append(f"{pack.name}: resource {kind!r}: take {', '.join(unknown)} out of the query.")
    if problems:
        raise PackError("\n".join(problems))


def _tool_problems(tool: AnyTool | AnyRemoteTool, kinds: dict[str, str]) -> list[str]:
    contract = tool.contract
    is_remote = isinstance(tool, RemoteTool)
    problems = [
        f"resource kind {use.kind!r} has no query; add it to Pack(resources=...)."
        for use in contract.resources
        if use.kind not in kinds
    ]
    if contract.side_effect is SideEffect.REVERSIBLE and tool.compensate is None:
        problems.append("is REVERSIBLE but has no compensate handler; write one or declare it IRREVERSIBLE.")
    if contract.side_effect is not SideEffect.REVERSIBLE and tool.compensate is not None:
        problems.append(
            f"is {contract.side_effect} and yet has a compensate handler; declare it REVERSIBLE or drop it."
        )
    if is_remote != (contract.dispatch is Dispatch.REMOTE):
        problems.append(f"is a {type(tool).__name__} and yet dispatched {contract.dispatch}; change one of the two.")
    if isinstance(tool, RemoteTool):
        problems += _remote_problems(tool)
    elif (contract.confirms is None) != (tool.confirm is None):
        problems.append("confirms of the contract and the handler confirm go together; add or drop one.")
    parameters = _REMOTE_PARAMETERS if is_remote else _PARAMETERS
    for name, wanted in parameters.items():
        handler = getattr(tool, name)
        if handler is not None:
            problems += _handler_problems(name, handler, tool, wanted)
    return problems


def _remote_problems(tool: AnyRemoteTool) -> list[str]:
    """Check that what the contract promises of unknown outcomes has its handler."""
    contract = tool.contract
    problems: list[str] = []
    if contract.idempotency is Idempotency.LOOKUP and tool.lookup is None:
        problems.append("has idempotency lookup but no lookup handler; write one.")
    if contract.cancel_by_key != (tool.cancel_by_key is not None):
        problems.append("cancel_by_key of the contract and the handler of that name go together; add or drop one.")
    if not contract.writes and tool.lookup is not None:
        problems.append("writes nothing, so there is nothing to look up; drop the lookup handler.")
    if not contract.writes and tool.verify is not None:
        problems.append("writes nothing, so there is nothing to read back; drop the verify handler.")
    if contract.when_moved is WhenMoved.PARK and tool.verify is None:
        problems.append("when_moved is park, and nothing is read back; write a verify handler.")
    return problems


def _handler_problems(  # noqa: PLR0911 - one line per fault
    name: str, handler: Callable[..., Any], tool: AnyTool | AnyRemoteTool, wanted: int
) -> list[str]:
    """Check what a type checker would, for authors who have none."""
    if not inspect.iscoroutinefunction(handler):
        return [f"{name} must be `async def`."]
    parameters = list(inspect.signature(handler).parameters.values())
    if len(parameters) != wanted:
        return [f"{name} takes {len(parameters)} arguments; it must take {wanted}: see activities/tool.py."]
    try:
        annotations = {
            at: said
            for at, said in inspect.get_annotations(handler, eval_str=True).items()
            if not isinstance(said, TypeVar)  # a handler of several tools
        }
    except Exception as error:  # noqa: BLE001 - an annotation may be any expression
        return [f"{name}: its annotations cannot be read ({error}); import what they name."]
    given = annotations.get(parameters[1].name)
    if given is not None and given is not tool.contract.input:
        wanted_input = tool.contract.input.__name__
        return [f"{name} takes {getattr(given, '__name__', given)}, its contract's input is {wanted_input}; use one."]
    output = tool.contract.output
    if name == "compensate" and annotations.get(parameters[2].name, output | None) != output | None:
        return [f"compensate must take {output.__name__} | None: an outcome can be unknown."]
    if name == "compensate" and annotations.get("return", Compensated) is not Compensated:
        return ["compensate must return Compensated; it may carry a residue."]
    if name == "confirm" and tool.contract.confirms is not None:
        confirmed = tool.contract.confirms.output
        if annotations.get("return", confirmed) is not confirmed:
            return [f"confirm must return {confirmed.__name__}, the contract's confirms.output."]
    if name == "execute" and annotations.get("return") not in (None, tool.contract.output):
        return [f"execute must return {tool.contract.output.__name__}, the contract's output."]
    return []


def _with_downstream(pack: Pack | DownstreamPack, addresses: Mapping[str, str]) -> Pack | None:
    if isinstance(pack, Pack):
        return pack
    address = addresses.get(pack.downstream)
    return None if address is None else pack.make(address)


def _pack_of(module: str) -> Pack | DownstreamPack:
    try:
        return _checked_type(module, getattr(importlib.import_module(module), "PACK", None))
    except ImportError as error:
        raise PackError(f"{module}: cannot be imported ({error}); correct the name in BACKSTAY_PACKS.") from error
    except PackError:
        raise
    except Exception as error:  # a module may do anything while it is imported
        raise PackError(f"{module}: fails while it is imported ({type(error).__name__}: {error}); mend it.") from error


def _checked_type(source: str, pack: object) -> Pack | DownstreamPack:
    if not isinstance(pack, Pack | DownstreamPack):
        raise PackError(f"{source}: has no `PACK = Pack(...)`; add one: see activities/tool.py.")
    return pack

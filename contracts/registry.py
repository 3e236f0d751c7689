"""The tools that exist: an immutable table of contracts, each of which was checked before it was let in."""

import difflib
from collections.abc import Iterable, Iterator, Mapping

from contracts.confirmation import confirmation_of
from contracts.errors import FieldProblem, Phase, SagaError
from contracts.lint import check_contract
from contracts.reasons import Reason
from contracts.tool import AnyContract
from contracts.wire import shown

_CLOSE_MATCHES_MAX = 3
_TOOLS_SHOWN_MAX = 20


class Registry(Mapping[str, AnyContract]):
    """Contracts by wire name, `freeze_account_funds@1`; made by `of`, never changed.

    The contract of a tool's confirmation is there for whoever has its wire name; it is not listed and not offered.
    """

    def __init__(self, contracts: Iterable[AnyContract] = ()) -> None:
        """Hold contracts that are known to be right; `of` is the door for those that are not."""
        self._contracts = {contract.wire_name: contract for contract in contracts}
        made = [confirmation for contract in self._contracts.values() if (confirmation := confirmation_of(contract))]
        self._confirmations = {confirmation.wire_name: confirmation for confirmation in made}
        self._latest: dict[str, AnyContract] = {}
        for contract in self._contracts.values():
            known = self._latest.get(contract.name)
            if known is None or known.major < contract.major:
                self._latest[contract.name] = contract

    @classmethod
    def of(cls, contracts: Iterable[AnyContract]) -> "Registry":
        """Check all contracts and hold them.

        Raises: ValueError with one line for each thing that is wrong in any of them, saying what to change.
        """
        listed = list(contracts)
        wrong: list[str] = []
        seen: set[str] = set()
        for contract in listed:
            if contract.wire_name in seen:
                wrong.append(f"{contract.wire_name}: registered twice; rename one or raise its major")
            seen.add(contract.wire_name)
            wrong += [f"{contract.wire_name}: {line}" for line in check_contract(contract)]
        if wrong:
            lines = "\n".join(f"  - {line}" for line in wrong)
            count = "One thing is" if len(wrong) == 1 else f"{len(wrong)} things are"
            raise ValueError(f"{count} wrong with the registered tools:\n{lines}")
        return cls(listed)

    def __getitem__(self, wire_name: str) -> AnyContract:
        return self._confirmations.get(wire_name) or self._contracts[wire_name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._contracts)

    def __len__(self) -> int:
        return len(self._contracts)

    def latest(self, name: str) -> AnyContract | None:
        """Find the highest major of a tool; None when there is no such tool."""
        return self._latest.get(name)

    def find(self, tool: str) -> AnyContract | None:
        """Find a tool by name (its latest major) or by name and major; None when there is no such tool."""
        return self._contracts.get(tool) if "@" in tool else self._latest.get(tool)

    def resolve(self, tool: str, *, path: str = "tool") -> AnyContract:
        """Find a tool by name (its latest major) or by name and major.

        Raises: SagaError(TOOL_UNKNOWN), phase validation, naming the closest tools; `path` says where it was named.
        """
        contract = self.find(tool)
        if contract is None:
            raise self._unknown(tool, path)
        return contract

    def _unknown(self, tool: str, path: str) -> SagaError:
        close = self._close_to(tool)
        known = ", ".join(sorted(self._contracts)[:_TOOLS_SHOWN_MAX])
        allowed = f"one of: {', '.join(close) or known or 'no tool is registered'}"
        message = f"There is no tool {shown(tool)}."
        advice = f" Did you mean {' or '.join(close)}?" if close else ""
        return SagaError(
            Reason.TOOL_UNKNOWN,
            f"{message}{advice}",
            details={"tool": shown(tool), "close_matches": close},
            fields=[
                FieldProblem(
                    path=path,
                    code="tool_unknown",
                    message=f"{message}{advice}",
                    allowed=allowed,
                    example=next(iter(close or sorted(self._contracts)), None),
                )
            ],
            phase=Phase.VALIDATION,
        )

    def _close_to(self, tool: str) -> list[str]:
        """List wire names like `tool`: all majors of the same name, else names spelled nearly so."""
        name = tool[:64].partition("@")[0]
        majors = sorted(contract.wire_name for contract in self._contracts.values() if contract.name == name)
        if majors:
            return majors
        names = difflib.get_close_matches(name, self._latest, n=_CLOSE_MATCHES_MAX)
        return [self._latest[found].wire_name for found in names]

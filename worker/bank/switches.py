"""What goes wrong now, and for how many requests more."""

from typing import Final

from worker.bank.wire import Door, Switch, SwitchName

_ORDERS: Final = (Door.PAYOUTS, Door.CHARGES, Door.REFUNDS)


class Switches:
    """The switches that are on."""

    def __init__(self) -> None:
        """Begin with everything working."""
        self._on: dict[SwitchName, Switch] = {}

    @property
    def on(self) -> dict[SwitchName, Switch]:
        """List what is on, each with the number of requests that it is still for."""
        return dict(self._on)

    def set(self, wanted: dict[SwitchName, Switch]) -> None:
        """Turn the named ones on, or off with `times` 0; the others stay as they are."""
        for name, switch in wanted.items():
            self._on[name] = switch
            self._drop_spent(name)

    def take(self, name: SwitchName, door: Door) -> Switch | None:
        """Use a switch once, if it is on at this door."""
        switch = self._on.get(name)
        places = (Door.ENTRIES,) if name is SwitchName.LOOKUP_DOWN else _ORDERS
        if switch is None or door not in (switch.on or places):
            return None
        if switch.times is not None:
            self._on[name] = switch.model_copy(update={"times": switch.times - 1})
            self._drop_spent(name)
        return switch

    def _drop_spent(self, name: SwitchName) -> None:
        if self._on[name].times == 0:
            del self._on[name]

"""The handlers of a tool that is one order at the bank: the same for all of them but for what is ordered and told."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from activities.packs.bank.client import Bank, Movement
from activities.packs.bank.sightings import Order, carry_out, fence, look_up, read_back
from activities.tool import Landed, NotLanded, RemoteContext, Unknown, WorldMoved
from contracts.tool import In, Out


@dataclass(frozen=True)
class Orders(Generic[In, Out]):
    """Carries orders out at one bank; `order` says what a step wants, `told` what its tool answers."""

    bank: Bank
    order: Callable[[RemoteContext, In], Order]
    told: Callable[[Movement], Out]

    async def execute(self, context: RemoteContext, step: In) -> Out:
        """Have it carried out, once for its key."""
        return self.told(await carry_out(self.bank, context.remote_key, self.order(context, step)))

    async def lookup(self, context: RemoteContext, step: In) -> Landed[Out] | NotLanded | Unknown:
        """Ask the bank's book."""
        return self._seen(await look_up(self.bank, context.remote_key, self.order(context, step)))

    async def cancel_by_key(self, context: RemoteContext, step: In) -> Landed[Out] | NotLanded | Unknown:
        """Forbid the key."""
        return self._seen(await fence(self.bank, context.remote_key, self.order(context, step)))

    async def verify(self, context: RemoteContext, step: In, _: Out) -> WorldMoved | None:
        """Read the book: one movement of this order under this key, of which nobody has given anything back."""
        return await read_back(self.bank, context.remote_key, self.order(context, step))

    def _seen(self, found: Movement | NotLanded | Unknown) -> Landed[Out] | NotLanded | Unknown:
        return Landed(output=self.told(found)) if isinstance(found, Movement) else found

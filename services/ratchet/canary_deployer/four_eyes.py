"""The rule of four eyes: an order counts once a second person, or program, has given the same one.

The first order waits for an hour, and the second one names both in its decision. Who waits is known to this process
alone: a deployer that takes the lead has them ask again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ratchet.canary_deployer.domain.operators import Order
from ratchet.core.errors import Conflict
from ratchet.core.rules.access import Caller

WAITS = timedelta(hours=1)
"""An order without a second person by then is forgotten."""


@dataclass(frozen=True, slots=True)
class _Asked:
    what: Hashable
    order: Order
    at: datetime


@dataclass(slots=True)
class FourEyes:
    """The orders that wait for a second person: of each role the newest one."""

    now: Callable[[], datetime]
    _asked: dict[str, _Asked] = field(default_factory=dict[str, _Asked], init=False)

    def seconded(self, role: str, what: Hashable, order: Order, caller: Caller) -> Order | None:
        """The order with both names, where another caller gave the same one; None: it is the first. `what`: all that
        makes it the same. Raises `Conflict` for a caller without a key."""
        if caller.key_id is None:
            raise Conflict("this order takes two people (RATCHET_FOUR_EYES), and without keys no person is known")
        first = self._waiting(role)
        if first is None or first.what != what or caller.is_named_in(first.order.actor):
            return None
        return dataclasses.replace(order, actor=f"{order.actor}, asked by {first.order.actor}")

    def wait(self, role: str, what: Hashable, order: Order) -> None:
        """Have an order wait, in the place of another one of the role."""
        self._asked[role] = _Asked(what, order, self.now())

    def over(self, role: str) -> None:
        """The order that waited has been carried out."""
        self._asked.pop(role, None)

    def waiting_for(self, role: str) -> list[str]:
        """What the role's rollout waits for, in words."""
        first = self._waiting(role)
        if first is None:
            return []
        until = first.at + WAITS
        return [
            f"a second person who gives the order of {first.order.actor} ({first.what}: {first.order.reason[:200]})"
            f" until {until:%H:%M} UTC"
        ]

    def _waiting(self, role: str) -> _Asked | None:
        first = self._asked.get(role)
        return first if first is not None and self.now() - first.at < WAITS else None

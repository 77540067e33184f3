"""A NATS JetStream library: messages with contracts, published and consumed exactly once in effect.

README.md tells what it guarantees and has a complete service. `ratchet.bus.testing` has the fakes.

A name is imported on first use: who seals messages, or reads contracts, needs no connection and does not load nats-py.
Ratchet's own services import the modules, not this face: import rules follow modules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratchet.bus.connection import (
        BackgroundConnection as BackgroundConnection,
        Bus as Bus,
        Extent as Extent,
        Patience as Patience,
    )
    from ratchet.bus.consumer import (
        BatchHandler as BatchHandler,
        Consumer as Consumer,
        Dead as Dead,
        Done as Done,
        Failed as Failed,
        Later as Later,
        Outcome as Outcome,
        Retry as Retry,
        each as each,
        subscribe as subscribe,
    )
    from ratchet.bus.contracts import Contracts as Contracts, Upgrade as Upgrade
    from ratchet.bus.deadletter import DeadLetter as DeadLetter
    from ratchet.bus.envelope import Record as Record, Sealer as Sealer
    from ratchet.bus.kv import Bucket as Bucket, Entry as Entry
    from ratchet.bus.message import Cause as Cause, Message as Message, Value as Value, named_id as named_id
    from ratchet.bus.ordered_reader import OrderedReader as OrderedReader
    from ratchet.bus.outbox import Outbox as Outbox
    from ratchet.bus.projection import Gap as Gap, Projection as Projection, project as project
    from ratchet.bus.received import Received as Received
    from ratchet.bus.registry import Bounds as Bounds
    from ratchet.bus.settings import BusSettings as BusSettings
    from ratchet.bus.spool import NoSpool as NoSpool, Spool as Spool
    from ratchet.core.errors import (
        BusUnavailable as BusUnavailable,
        ConfigError as ConfigError,
        Conflict as Conflict,
        ContractError as ContractError,
        InvalidMessage as InvalidMessage,
        RatchetError as RatchetError,
        Rejected as Rejected,
        Unavailable as Unavailable,
        UnknownSubject as UnknownSubject,
        Unreadable as Unreadable,
    )

_NAMES = {
    "ratchet.bus.connection": "BackgroundConnection Bus Extent Patience",
    "ratchet.bus.consumer": "BatchHandler Consumer Dead Done Failed Later Outcome Retry each subscribe",
    "ratchet.bus.contracts": "Contracts Upgrade",
    "ratchet.bus.deadletter": "DeadLetter",
    "ratchet.bus.envelope": "Record Sealer",
    "ratchet.bus.kv": "Bucket Entry",
    "ratchet.bus.message": "Cause Message Value named_id",
    "ratchet.bus.ordered_reader": "OrderedReader",
    "ratchet.bus.outbox": "Outbox",
    "ratchet.bus.projection": "Gap Projection project",
    "ratchet.bus.received": "Received",
    "ratchet.bus.registry": "Bounds",
    "ratchet.bus.settings": "BusSettings",
    "ratchet.bus.spool": "NoSpool Spool",
    "ratchet.core.errors": (
        "BusUnavailable ConfigError Conflict ContractError InvalidMessage RatchetError Rejected Unavailable "
        "UnknownSubject Unreadable"
    ),
}
"""Module -> the public names that are imported from it."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """A public name, on first use. `Any`: type checkers read the imports above."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)

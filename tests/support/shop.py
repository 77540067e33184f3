"""A domain of its own for tests of the bus: orders, bills and parcels, with their contracts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ratchet.bus.contracts import Contracts
from ratchet.bus.deadletter import DeadLetter
from ratchet.bus.message import Message

OBJECT = {"type": "object", "additionalProperties": False}


class Order(Message, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "shop.order.v1"
    number: int
    country: str = "de"
    note: str = ""

    @property
    def subject(self) -> str:
        return f"{self.TOPIC}.{self.country}"

    @property
    def event_id(self) -> str:
        return f"order-{self.number}"


class Bill(Message, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "shop.bill.v1"
    number: int

    @property
    def event_id(self) -> str:
        return f"bill-{self.number}"


class Parcel(Message, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "shop.parcel.v1"
    number: int
    depot: str

    @property
    def subject(self) -> str:
        return f"{self.TOPIC}.{self.depot}"


class Undeliverable(DeadLetter, frozen=True, kw_only=True):
    TOPIC: ClassVar[str] = "shop.dead.v1"


SCHEMAS: Mapping[str, Any] = {
    "order.v1": {
        **OBJECT,
        "required": ["number"],
        "properties": {
            "number": {"type": "integer", "minimum": 1},
            "country": {"type": "string"},
            "note": {"type": "string"},
        },
    },
    "bill.v1": {**OBJECT, "required": ["number"], "properties": {"number": {"type": "integer"}}},
    "parcel.v1": {
        **OBJECT,
        "required": ["number", "depot"],
        "properties": {"number": {"type": "integer"}, "depot": {"type": "string"}},
    },
    "dead.v1": {"type": "object"},
}


def _topic(kind: type[Message], schema: str, stream: str, *parameters: str) -> dict[str, Any]:
    subject = ".".join((kind.TOPIC, *parameters))
    return {
        "subjects": [subject],
        "schema": schema,
        "stream": stream,
        "description": "",
        "producers": [],
        "consumers": [],
    }


def _stream(subjects: str, retention: str = "limits") -> dict[str, Any]:
    return {
        "description": "",
        "subjects": [subjects],
        "retention": retention,
        "discard": "old",
        "max_age_s": None,
        "max_msgs": None,
        "max_bytes": None,
        "duplicate_window_s": 120,
        "allow_atomic": retention == "limits",
    }


def _consumer(stream: str, kind: type[Message], **more: Any) -> dict[str, Any]:
    return {"service": "shop", "stream": stream, "topics": [kind.TOPIC], "linger_s": 0.01, **more}


REGISTRY: Mapping[str, Any] = {
    "dead_letters": Undeliverable.TOPIC,
    "parameters": {name: {"pattern": "[A-Za-z_]+"} for name in ("country", "depot", "stream", "reason")},
    "topics": {
        Order.TOPIC: _topic(Order, "order.v1", "ORDERS", "<country>"),
        Bill.TOPIC: _topic(Bill, "bill.v1", "BILLS"),
        Parcel.TOPIC: _topic(Parcel, "parcel.v1", "PARCELS", "<depot>"),
        Undeliverable.TOPIC: _topic(Undeliverable, "dead.v1", "DEAD", "<stream>", "<reason>"),
    },
    "streams": {
        "ORDERS": _stream("shop.order.v1.*"),
        "BILLS": _stream("shop.bill.v1"),
        "PARCELS": _stream("shop.parcel.v1.*", "workqueue"),
        "DEAD": _stream("shop.dead.v1.>"),
    },
    "buckets": {"totals": {"history": 1, "description": "", "writers": [], "readers": []}},
    "consumers": {
        "bills": _consumer("ORDERS", Order, max_deliveries=1),
        "patient-bills": _consumer("ORDERS", Order, ack_wait_s=1.0),
        "depot-<depot>": _consumer("PARCELS", Parcel, subjects=["shop.parcel.v1.<depot>"], batch=1),
    },
    "projections": {
        "orders-by-country": {"service": "shop", "stream": "ORDERS", "topics": [Order.TOPIC], "bucket": "totals"}
    },
}

TYPES: Mapping[str, type[Message]] = {kind.TOPIC: kind for kind in (Order, Bill, Parcel, Undeliverable)}


def shop(mask: Callable[[str], str] = str, redact: Callable[[str], str] = str) -> Contracts:
    """The contracts of the shop."""
    return Contracts(REGISTRY, SCHEMAS, TYPES, mask=mask, redact=redact)

"""Telemetry about someone who has opted out: it is taken, and goes nowhere, nor does what comes later of its trace."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from ratchet.bus.connection import Bus
from ratchet.bus.envelope import Record
from ratchet.core.contract import OptOut
from ratchet.core.contract.erasure import TRAJECTORY, USER
from ratchet.core.rules.access import ANYONE
from ratchet.core.rules.texts import user_ref
from ratchet.core.service.asgi import Request
from ratchet.core.service.opt_outs import KnownOptOuts
from ratchet.dialects.telemetry.otlp import PROTOBUF
from ratchet.gateway.domain.peer_updates import PeerUpdates
from ratchet.gateway.domain.prices import Prices
from ratchet.gateway.domain.routing import Arms
from ratchet.gateway.recorder import Recorder
from ratchet.gateway.recorder_pool import Finish
from ratchet.gateway.recorder_process import Recorded
from ratchet.gateway.span_records import SpansJob, take_spans
from ratchet.gateway.telemetry import Telemetry
from ratchet.gateway.unrecorded import Unrecorded
from tests.support.telemetry import RECEIVED, SEALER, traced

KEY = "key of users"


class Gateway:
    """Its telemetry, with a broker that keeps what it gets."""

    largest = 8 << 20

    def __init__(self) -> None:
        self.stored: list[Record] = []
        self.sent: list[OptOut] = []
        never: Any = asyncio.Event().wait
        known = KnownOptOuts(never)
        self.unrecorded = Unrecorded(known, Arms(0), PeerUpdates(), self._send, lambda: "0" * 32, lambda: RECEIVED)
        recorder, bus = cast("Recorder", self), cast("Bus", self)
        self.telemetry = Telemetry(
            recorder, lambda: bus, {}, "default", KEY, self.unrecorded, Prices(), lambda: RECEIVED
        )

    def _send(self, opt_out: OptOut) -> bool:
        self.sent.append(opt_out)
        return True

    def record_spans(self, job: SpansJob, finish: Finish) -> None:
        finish(Recorded(None, spans=take_spans(job, SEALER)))

    async def publish_record(self, record: Record) -> None:
        self.stored.append(record)

    async def take(self, body: bytes, headers: dict[bytes, bytes] | None = None) -> int:
        named = {b"content-type": PROTOBUF.encode(), **(headers or {})}
        answer = await self.telemetry.take("traces", Request("POST", "/v1/traces", named, body, caller=ANYONE), None)
        assert answer.body == b""
        return answer.status


async def test_spans_of_who_opted_out_and_later_ones_of_their_trace_are_dropped() -> None:
    here = Gateway()
    here.unrecorded.send(USER, user_ref(KEY, "mia") or "", "default")
    assert await here.take(traced("one", **{"user.id": "mia"}).protobuf) == 200
    assert await here.take(traced("one", calls=2, since=1).protobuf) == 200
    assert here.stored == []
    assert [(each.kind, each.erases) for each in here.sent] == [(USER, True), (TRAJECTORY, False)]
    assert await here.take(traced("two", **{"user.id": "miam"}).protobuf) == 200
    assert len(here.stored) == 1


async def test_telemetry_with_the_header_is_taken_and_kept_nowhere() -> None:
    here = Gateway()
    assert await here.take(traced("one").protobuf, {b"x-ratchet-record": b"off"}) == 200
    assert here.stored == []

"""The span exporter on a real broker, in front of a receiver that refuses, fails, dies and comes back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import REGISTRY

from ratchet.bus.connection import Bus
from ratchet.bus.testing import eventually
from ratchet.core.contract import Message
from ratchet.core.service.asgi import Response
from ratchet.core.service.runtime import App
from ratchet.core.service.settings import SharedSettings
from ratchet.extras.span_exporter.app import build
from ratchet.extras.span_exporter.settings import Settings
from ratchet.local.local_stack.ports import free_ports
from tests.support.messages import turn
from tests.support.running import connected, running_app
from tests.support.servers import Broker
from tests.support.span_exports import AGENT, SpanReceiver, decision, reward


@pytest.fixture
def shared(nats: Broker) -> SharedSettings:
    return SharedSettings(nats_url=nats.url)


@pytest.fixture
def port() -> int:
    return free_ports(1, [])[0]


@asynccontextmanager
async def exporter(shared: SharedSettings, port: int) -> AsyncIterator[App]:
    given = {"shared": shared, "endpoint": f"http://127.0.0.1:{port}", "headers": "Authorization=Basic%20cGs6c2s%3D"}
    async with running_app(build(Settings.model_validate(given))) as app:
        yield app


async def published(bus: Bus, *messages: Message) -> None:
    for message in messages:
        await bus.publish(message)


def refused() -> float:
    return REGISTRY.get_sample_value("ratchet_exported_spans_total", {"outcome": "refused"}) or 0.0


async def test_a_call_its_reward_and_a_verdict_arrive_linked(shared: SharedSettings, port: int) -> None:
    receiver, call = SpanReceiver(), turn(trace=AGENT)
    async with connected(shared) as bus, receiver.at(port), exporter(shared, port):
        await published(bus, call, reward(trace=call.span), decision())
        await eventually(lambda: receiver.has(3))
    by_name = {spans[0].name: spans[0] for spans in receiver.spans.values()}
    answered, judged = by_name["chat support"], by_name["gen_ai.evaluation.result"]
    assert answered.trace_id.hex() == judged.trace_id.hex() == AGENT.trace_id
    assert (answered.parent_span_id.hex(), judged.parent_span_id) == (AGENT.span_id, answered.span_id)
    assert "rollout roll_back support" in by_name
    assert {request.header(b"authorization") for request in receiver.requests} == {"Basic cGs6c2s="}
    assert {request.path for request in receiver.requests} == {"/v1/traces"}


async def test_what_was_acknowledged_is_not_sent_again(shared: SharedSettings, port: int) -> None:
    receiver = SpanReceiver()
    async with connected(shared) as bus, receiver.at(port):
        async with exporter(shared, port):
            await published(bus, turn())
            await eventually(lambda: receiver.has(1))
        async with exporter(shared, port):
            await published(bus, turn(index=1))
            await eventually(lambda: receiver.has(2))
    assert [len(spans) for spans in receiver.spans.values()] == [1, 1]


async def test_spans_wait_for_a_receiver_that_is_away(shared: SharedSettings, port: int) -> None:
    receiver = SpanReceiver()
    async with connected(shared) as bus, exporter(shared, port) as app:
        await published(bus, turn())

        async def is_noted() -> bool:
            return "does not answer" in (await app.notes["receiver"]() or "")

        await eventually(is_noted)
        async with receiver.at(port):
            await eventually(lambda: receiver.has(1))
        assert await app.checks["broker"]() is None


@pytest.mark.parametrize("status", [401, 404, 429, 500, 503])
async def test_spans_are_sent_again_under_their_ids(shared: SharedSettings, port: int, status: int) -> None:
    receiver = SpanReceiver(answers=[Response(status, b"{}", [(b"retry-after", b"1")])])
    async with connected(shared) as bus, receiver.at(port), exporter(shared, port) as app:
        await published(bus, turn())

        async def is_taken() -> bool:
            return len(receiver.requests) > 1 and await app.notes["receiver"]() is None

        await eventually(is_taken)
    assert [len(spans) for spans in receiver.spans.values()] == [2]


async def test_spans_that_are_refused_are_counted_and_keep_none(shared: SharedSettings, port: int) -> None:
    before, receiver = refused(), SpanReceiver(answers=[Response(400, b"no")])
    async with connected(shared) as bus, receiver.at(port), exporter(shared, port):
        await published(bus, turn())
        await eventually(lambda: receiver.has(1))
        await published(bus, turn(index=1))
        await eventually(lambda: receiver.has(2))
    assert [len(spans) for spans in receiver.spans.values()] == [1, 1]
    assert refused() == before + 1


@pytest.mark.parametrize("status", [400, 413])
async def test_a_request_that_is_too_much_is_sent_in_parts(shared: SharedSettings, port: int, status: int) -> None:
    receiver = SpanReceiver(most=2, too_many=status)
    async with connected(shared) as bus, receiver.at(port):
        await published(bus, *(turn(index=index) for index in range(5)))
        async with exporter(shared, port):
            await eventually(lambda: receiver.has(5))
    assert [len(spans) for spans in receiver.spans.values()] == [1] * 5
    assert len(receiver.requests) >= 3  # five spans, two at a time

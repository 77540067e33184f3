"""Public senders of telemetry as they are, live, against a gateway in a process of its own. `make test-clients`."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.testing import eventually
from ratchet.core.contract import Spans
from ratchet.core.rules.chat import chat_messages
from ratchet.core.service.settings import SharedSettings
from tests.clients.model import ANSWER
from tests.clients.senders import SENDERS, run, versions
from tests.support.consuming import messages_of
from tests.support.gateway_process import gateway_process
from tests.support.running import connected
from tests.support.servers import RunningServer
from tests.support.telemetry import VERSIONS, folded, received, sent

KEY = "a-key-of-the-agents"


def test_recorded_bytes_are_of_the_versions_that_run_here() -> None:
    assert json.loads(VERSIONS.read_text()) == versions()


@pytest.mark.parametrize("name", SENDERS)
async def test_sender_reaches_the_gateway_as_its_recorded_bytes_do(
    name: str, nats: RunningServer, tmp_path: Path
) -> None:
    settings = {"RATCHET_GATEWAY_API_KEYS": json.dumps([KEY])}
    async with connected(SharedSettings(nats_url=nats.url, data_dir=tmp_path / "reader")) as bus:
        with gateway_process(nats.url, "http://127.0.0.1:1", tmp_path, **settings) as gateway:
            await run(SENDERS[name], gateway.url, f"Authorization=Bearer%20{KEY}")
            expected = runs_of(received(sent(name)))
            live = runs_of(await spans_of(bus, sum(len(batch.spans) for parts in expected for batch in parts)))
    assert [answers_of(parts) for parts in live] == [answers_of(parts) for parts in expected]


async def spans_of(bus: Bus, number: int) -> list[Spans]:
    """What the gateway published, once there are as many spans."""

    async def probe() -> list[Spans]:
        batches = await messages_of(bus, Spans)
        return batches if sum(len(batch.spans) for batch in batches) >= number else []

    return await eventually(probe)


def runs_of(batches: list[Spans]) -> list[list[Spans]]:
    traces: defaultdict[str, list[Spans]] = defaultdict(list)
    for batch in batches:
        traces[batch.trace_id].append(batch)
    return sorted(traces.values(), key=lambda parts: min(str(s.started_at) for part in parts for s in part.spans))


def answers_of(parts: list[Spans]) -> list[list[str]]:
    """What the assistant answered at the end of each conversation of a run."""
    if not any(span.prompt or span.messages for part in parts for span in part.spans):
        return []
    chats = [chat_messages(made) for made in folded(parts).assembled.trajectories]
    assert all(chat[-1]["content"] == ANSWER for chat in chats)
    return [[message["role"] for message in chat] for chat in chats]

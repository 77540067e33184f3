"""Messages that the span exporter reads, and a receiver of its spans on a loopback port, which answers as is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from ratchet.bus.envelope import Sealer
from ratchet.bus.message import Cause, Message
from ratchet.bus.received import Received
from ratchet.core.contract import ModelRollout, Reward
from ratchet.core.contract.deployment import RolloutStage
from ratchet.core.contract.reward import RewardComponent, RewardFunction, RewardMetadata
from ratchet.core.contract.traces import Trace
from ratchet.core.service.asgi import JsonApi, Request, Response
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.http import HttpServer
from ratchet.dialects.telemetry.otlp import PROTOBUF
from tests.support.messages import turn
from tests.support.rewards import received
from tests.support.running import running

M = TypeVar("M", bound=Message)
AT = datetime(2026, 3, 2, 10, tzinfo=UTC)
SEALER = Sealer(load_contracts(), "test", lambda: AT)
AGENT = Trace(trace_id="4bf92f3577b34da6a3ce929d0e0e4736", span_id="00f067aa0ba902b7")
TAKEN = Response(200, b"", [(b"content-type", PROTOBUF.encode())])


def delivered(message: M, cause: Cause | None = None) -> Received[M]:
    """As it comes off the stream, with the headers that publishing gives it."""
    return replace(received(message), headers=SEALER.seal(message, cause).headers)


def reward(**changes: Any) -> Reward:
    plain: dict[str, Any] = {
        "reward_id": "7c0e1b5a-93d4-5a28-b6f7-1f2e3d4c5b6a",
        "trajectory_id": turn().trajectory_id,
        "session_id": "chat-1",
        "timestamp": AT,
        "reward_components": {
            "task_completion": RewardComponent(
                score=1.0, weight=0.75, source="automated", reasoning="outcome success", raw_data={"status": "success"}
            ),
            "judge": RewardComponent(score=0.5, weight=0.25, source="automated", reasoning="quotes the customer"),
            "user_feedback": RewardComponent(score=0.0, weight=0.0, source="human", applicable=False),
        },
        "total_reward": 0.875,
        "reward_type": "sparse",
        "metadata": RewardMetadata(evaluator="test", evaluation_method="automated", confidence=0.9),
        "role": "support",
        "reward_function": RewardFunction(name="weighted_components", version="2"),
        "trace": turn(trace=AGENT).span,
    }
    return Reward(**plain | changes)


def decision(**changes: Any) -> ModelRollout:
    plain: dict[str, Any] = {
        "rollout_id": "8c7a4d0e-5a43-5a0f-8d2b-1f0b8e1f2a3b",
        "sequence": 3,
        "timestamp": AT,
        "role": "support",
        "to_version": 7,
        "from_version": 6,
        "stage": RolloutStage(index=1, weight=0.1),
        "verdict": "roll_back",
        "reason": "more failures than stable",
        "actor": "canary_deployer",
        "e_values": {"rollback": {"failure": 31.5}},
        "samples": {"stable": 900, "canary": 100},
    }
    return ModelRollout(**plain | changes)


@dataclass
class SpanReceiver:
    """What came, by span id, and how it is answered."""

    answers: list[Response] = field(default_factory=list)
    """Of the next requests, instead of 200."""
    most: int = 1000
    """Spans of a request; more are answered with `too_many`."""
    too_many: int = 413
    requests: list[Request] = field(default_factory=list)
    spans: dict[str, list[Span]] = field(default_factory=dict)
    """By id, each as often as it came."""

    async def post(self, request: Request) -> Response:
        """The one route. What is refused later came all the same."""
        self.requests.append(request)
        sent = ExportTraceServiceRequest.FromString(request.body)
        spans = [span for resource in sent.resource_spans for scope in resource.scope_spans for span in scope.spans]
        if len(spans) > self.most:
            return Response(self.too_many, b"{}")
        for span in spans:
            self.spans.setdefault(span.span_id.hex(), []).append(span)
        return self.answers.pop(0) if self.answers else TAKEN

    @asynccontextmanager
    async def at(self, port: int) -> AsyncIterator[None]:
        """Listen there for the length of a block."""
        async with running(HttpServer(JsonApi(lambda _method, _path: self.post, 1 << 24), "127.0.0.1", port)):
            yield

    async def has(self, number: int) -> bool:
        """Whether so many different spans came."""
        return len(self.spans) >= number

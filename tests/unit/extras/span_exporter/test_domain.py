"""What becomes of messages: spans by the conventions, under ids that follow from the messages."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from ratchet.bus.message import Cause, decode
from ratchet.core.contract import TrainingRequest, TrainingStatus
from ratchet.core.contract.traces import BY_SPAN
from ratchet.core.contract.training import ErrorCode, TrainingError
from ratchet.core.contract.trajectory import PolicyClaim
from ratchet.core.contract.turn import EngineInfo, Provider, Sampling, Usage
from ratchet.core.resources import resource_dir
from ratchet.extras.span_exporter.domain import call_span, decision_span, request_of, reward_span, training_span
from tests.support.messages import turn
from tests.support.span_exports import AGENT, decision, delivered, reward

CANARY = PolicyClaim(role="support", version=7, digest="ab" * 32, arm="canary", weight=0.1)


def attributes(span: Span | Span.Event | None) -> dict[str, Any]:
    assert span is not None
    read: dict[str, Any] = {}
    for pair in span.attributes:
        kind = pair.value.WhichOneof("value")
        held = getattr(pair.value, str(kind))
        read[pair.key] = [item.string_value for item in held.values] if kind == "array_value" else held
    return read


def request() -> TrainingRequest:
    path = resource_dir("contracts") / "examples/training.request.v1/valid/full.json"
    return decode(path.read_bytes(), TrainingRequest)


def status(name: str) -> TrainingStatus:
    path = resource_dir("contracts") / f"examples/training.status.v1/valid/{name}.json"
    return decode(path.read_bytes(), TrainingStatus)


def of_job() -> Cause:
    return Cause(event_id="job", correlation_id="job", traceparent=request().traceparent)


def test_a_call_is_a_chat_span_below_its_agents_span() -> None:
    call = turn(trace=AGENT, latency_ms=1250.0)
    span = call_span(delivered(call), content=False)
    assert span is not None
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (AGENT.trace_id, AGENT.span_id)
    assert (span.span_id.hex(), span.name, span.kind) == (call.span.span_id, "chat support", Span.SPAN_KIND_CLIENT)
    assert span.end_time_unix_nano - span.start_time_unix_nano == 1_250_000_000
    assert span.status.code == Status.STATUS_CODE_UNSET


def test_a_call_without_a_trace_is_in_one_of_its_trajectory() -> None:
    call = turn()
    span = call_span(delivered(call), content=False)
    assert span is not None
    assert (span.trace_id.hex(), span.parent_span_id) == (call.trajectory_id.replace("-", ""), b"")


def test_a_call_has_the_attributes_of_the_conventions() -> None:
    call = turn(
        trace=AGENT,
        api="responses",
        engine=EngineInfo(name="openai"),
        parameters={"model": "gpt-4.1-mini"},
        provider=Provider(id="resp_1", model="gpt-4.1-mini-2025-04-14"),
        sampling=Sampling(temperature=0.2, max_tokens=64),
        usage=Usage(prompt=11, completion=7, cached=3, reasoning=2),
        first_token_ms=250.0,
        session_id="chat-1",
        agent_id="helpdesk",
        cost_usd=0.001,
    )
    values = attributes(call_span(delivered(call), content=False))
    assert values == values | {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4.1-mini",
        "gen_ai.request.temperature": 0.2,
        "gen_ai.request.max_tokens": 64,
        "gen_ai.response.model": "gpt-4.1-mini-2025-04-14",
        "gen_ai.response.id": "resp_1",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.time_to_first_chunk": 0.25,
        "gen_ai.usage.input_tokens": 11,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.reasoning.output_tokens": 2,
        "gen_ai.conversation.id": "chat-1",
        "gen_ai.agent.id": "helpdesk",
        "ratchet.cost_usd": 0.001,
    }
    assert "gen_ai.prompt.name" not in values


def test_a_role_is_a_feature_flag_whose_variant_is_the_arm() -> None:
    call = turn(policy=CANARY, applied_by="gateway")
    values = attributes(call_span(delivered(call), content=False))
    assert values == values | {
        "feature_flag.provider.name": "ratchet",
        "feature_flag.key": "support",
        "feature_flag.result.variant": "canary",
        "feature_flag.result.reason": "split",
        "feature_flag.version": "7",
        "feature_flag.context.id": call.trajectory_id,
        "gen_ai.response.model": "support@7-abababab",
        "gen_ai.prompt.name": "support",
        "gen_ai.prompt.version": "7",
    }


def test_content_is_sent_where_that_is_asked_for_alone() -> None:
    called = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "call_1", "content": "nothing"},
        {"role": "user", "content": [{"type": "text", "text": "secret words"}, {"type": "file", "file": {}}]},
    ]
    call = turn(
        messages=messages, response={"content": "secret words", "reasoning_content": "hm"}, error="secret words"
    )
    closed_span, open_span = (call_span(delivered(call), content=content) for content in (False, True))
    assert closed_span is not None
    assert b"secret words" not in closed_span.SerializeToString()
    texts = attributes(open_span)
    assert json.loads(texts["gen_ai.input.messages"]) == [
        {"role": "system", "parts": [{"type": "text", "content": "Be brief."}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "call_1", "name": "find", "arguments": "{}"}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call_1", "response": "nothing"}]},
        {
            "role": "user",
            "parts": [{"type": "text", "content": "secret words"}, {"type": "file", "file": {}}],
        },
    ]
    (answer,) = json.loads(texts["gen_ai.output.messages"])
    assert [part["type"] for part in answer["parts"]] == ["reasoning", "text"]


def test_content_of_no_known_form_is_sent_as_it_is() -> None:
    calls = [{"id": 1, "function": "find"}, "find"]
    messages = [{"role": "user", "content": ["plain", 7]}, {"role": 5, "content": {"a": 1}, "tool_calls": calls}]
    texts = attributes(call_span(delivered(turn(messages=messages)), content=True))
    asked, called = json.loads(texts["gen_ai.input.messages"])
    assert asked["parts"] == ["plain", 7]
    assert [part["type"] for part in called["parts"]] == ["text", "tool_call"]


def test_a_failed_call_is_an_error_with_the_engines_fault() -> None:
    call = turn(error="the engine broke", engine=EngineInfo(name="vllm", fault="broke"), response=None)
    span = call_span(delivered(call), content=False)
    assert span is not None
    assert (span.status.code, span.status.message) == (Status.STATUS_CODE_ERROR, "broke")
    assert attributes(span)["error.type"] == "broke"


def test_what_is_not_recorded_and_what_telemetry_reported_is_no_span() -> None:
    unsampled = msgspec.structs.replace(AGENT, sampled=False)
    assert call_span(delivered(turn(trace=unsampled)), content=False) is None
    assert reward_span(delivered(reward(trace=unsampled)), content=False) is None
    assert call_span(delivered(turn(trace=AGENT, trajectory_by=BY_SPAN)), content=False) is None


def test_a_reward_is_an_evaluation_below_the_last_call() -> None:
    span = reward_span(delivered(reward(revision=2)), content=False)
    assert span is not None
    assert (span.name, span.trace_id.hex()) == ("gen_ai.evaluation.result", AGENT.trace_id)
    assert (span.span_id.hex(), span.parent_span_id.hex()) == ("b6f71f2e3d4c5b6a", turn(trace=AGENT).span.span_id)
    values = attributes(span)
    assert values == values | {
        "gen_ai.evaluation.name": "reward",
        "gen_ai.evaluation.score.value": 0.875,
        "gen_ai.evaluation.score.label": "success",
        "gen_ai.evaluation.explanation": "task_completion 1 x 0.75 + judge 0.5 x 0.25",
        "ratchet.reward.function": "weighted_components@2",
        "ratchet.reward.revision": 2,
    }


def test_components_are_events_whose_words_are_content() -> None:
    closed_span, open_span = (reward_span(delivered(reward()), content=content) for content in (False, True))
    assert closed_span is not None
    assert open_span is not None
    assert b"customer" not in closed_span.SerializeToString()
    assert {event.name for event in open_span.events} == {"gen_ai.evaluation.result"}
    judged = [attributes(event) for event in open_span.events]
    assert [(event["gen_ai.evaluation.name"], event["gen_ai.evaluation.score.value"]) for event in judged] == [
        ("task_completion", 1.0),
        ("judge", 0.5),
    ]
    assert judged[1]["gen_ai.evaluation.explanation"] == "quotes the customer"


def test_a_reward_without_a_trace_is_in_that_of_its_trajectory() -> None:
    span = reward_span(delivered(reward(trace=None)), content=False)
    assert span is not None
    assert (span.trace_id.hex(), span.parent_span_id) == (turn().trajectory_id.replace("-", ""), b"")


def test_a_job_is_the_root_of_a_trace_that_its_rollout_continues() -> None:
    done = msgspec.structs.replace(status("full"), status="completed", error=None)
    job = training_span(delivered(done, of_job()))
    decided = decision_span(delivered(decision(), of_job()))
    assert job is not None
    assert decided is not None
    assert job.trace_id.hex() == request().training_job_id.replace("-", "")
    assert (decided.trace_id, decided.parent_span_id, job.parent_span_id) == (job.trace_id, job.span_id, b"")


def test_a_failed_attempt_is_below_its_job_and_a_running_one_no_span() -> None:
    assert training_span(delivered(msgspec.structs.replace(status("full"), status="running"), of_job())) is None
    error = TrainingError(code=ErrorCode.OOM, message="out of memory")
    failed = msgspec.structs.replace(status("full"), status="failed", error=error)
    span = training_span(delivered(failed, of_job()))
    assert span is not None
    assert span.parent_span_id.hex() == of_job().traceparent.split("-")[2]
    assert (span.status.code, attributes(span)["error.type"]) == (Status.STATUS_CODE_ERROR, "OOM")


def test_a_verdict_has_its_reason_and_of_a_bundle_its_own_trace() -> None:
    span = decision_span(delivered(decision()))
    assert span is not None
    assert (span.trace_id.hex(), span.name) == (decision().rollout_id.replace("-", ""), "rollout roll_back support")
    values = attributes(span)
    assert values == values | {
        "feature_flag.key": "support",
        "feature_flag.version": "7",
        "ratchet.rollout.verdict": "roll_back",
        "ratchet.rollout.reason": "more failures than stable",
        "ratchet.rollout.samples.canary": 100,
        "ratchet.rollout.e_value.rollback.failure": 31.5,
    }


def test_the_same_message_is_the_same_span_and_another_one_another() -> None:
    calls = [turn(), turn(), turn(index=1)]
    spans = [call_span(delivered(call), content=False) for call in calls]
    assert spans[0] == spans[1]
    assert len({span.span_id for span in spans if span}) == 2


def test_a_request_is_ratchets_own_by_its_scope() -> None:
    span = call_span(delivered(turn()), content=False)
    assert span is not None
    (resource,) = request_of([span]).resource_spans
    assert [scope.scope.name for scope in resource.scope_spans] == ["ratchet"]
    assert resource.resource.attributes[0].value.string_value == "ratchet"


@pytest.mark.parametrize("year", [1, 1969, 9999])
def test_wrong_clocks_and_counts_of_any_size_fit_into_spans(year: int) -> None:
    at = datetime(year, 1, 1, tzinfo=UTC)
    call = call_span(
        delivered(turn(timestamp=at, latency_ms=1e300, usage=Usage(prompt=10**30, completion=1))), content=True
    )
    usage = msgspec.structs.replace(status("full").resource_usage, total_training_time_seconds=1e300)
    done = msgspec.structs.replace(status("full"), status="completed", timestamp=at, resource_usage=usage)
    job, decided = training_span(delivered(done, of_job())), decision_span(delivered(decision(timestamp=at)))
    assert call is not None
    assert job is not None
    assert decided is not None
    assert call.start_time_unix_nano <= call.end_time_unix_nano < 2**63
    assert attributes(call)["gen_ai.usage.input_tokens"] == 2**63 - 1
    assert job.start_time_unix_nano == 0
    assert decided.start_time_unix_nano < 2**63

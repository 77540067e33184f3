"""Calls, rewards, trainings and decisions of rollouts as spans of OpenTelemetry. Pure: a message in, a span out.

Ids follow from those of the messages, so that what is sent twice is one span. Names of attributes are those of the
conventions (`gen_ai.*` of https://github.com/open-telemetry/semantic-conventions-genai, `feature_flag.*`); what they
have no name for begins with `ratchet.`. A role is a feature flag, its arms are the variants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from ratchet.bus.received import Received
from ratchet.core.contract import Message, ModelRollout, Reward, TrainingStatus, Turn
from ratchet.core.contract.reward import RewardComponent
from ratchet.core.contract.traces import BY_SPAN, TRACEPARENT, Trace, read_traceparent, span_id_of, trace_id_of
from ratchet.core.contract.turn import NOT_APPLIED
from ratchet.core.rules.arms import PINNED, policy_name
from ratchet.dialects.telemetry.names import OWN_SCOPE
from ratchet.extras.span_exporter.messages import input_of, output_of

Attribute = str | bool | int | float | Sequence[str] | None
"""A value; one that is None is left out."""
CHAT, COMPLETION = "chat", "text_completion"
EVALUATION = "gen_ai.evaluation.result"
REWARD = "reward"
"""The name of the evaluation that is the whole reward; its components have their own."""
OUTCOME = "task_completion"
"""The component that knows the outcome's status."""
COMPLETED = "completed"
ENDED = (COMPLETED, "failed")
"""Reports of an attempt that is over."""
_LARGEST, _LAST_S = 2**63 - 1, 9.2e9
"""The largest number of an attribute, and about the last second that a span can name, in the year 2261."""
_REMOTE = 0x300
"""Flags of a span whose parent is another process's."""


def request_of(spans: Iterable[Span]) -> ExportTraceServiceRequest:
    """What is posted."""
    resource = Resource(attributes=_attributes({"service.name": "ratchet"}))
    ours = ScopeSpans(scope=InstrumentationScope(name=OWN_SCOPE), spans=spans)
    return ExportTraceServiceRequest(resource_spans=[ResourceSpans(resource=resource, scope_spans=[ours])])


def call_span(received: Received[Turn], *, content: bool) -> Span | None:
    """The gateway's call; None where its agent does not record the trace, or has reported the call itself."""
    turn, own = received.message, _named(received)
    if own is None or not own.sampled or turn.trajectory_by == BY_SPAN:
        return None
    operation = COMPLETION if turn.api == "completion" else CHAT
    model = str((turn.parameters or {}).get("model") or turn.role)
    span = _span(own.trace_id, own.span_id, f"{operation} {model}", turn.timestamp, turn.trace)
    span.kind, span.flags = Span.SPAN_KIND_CLIENT, _REMOTE if turn.trace else 0
    span.end_time_unix_nano = _ns(turn.timestamp, (turn.latency_ms or 0.0) / 1000)
    span.attributes.extend(_attributes(_of_call(turn, operation, model)))
    span.attributes.extend(_attributes(_of_arm(turn)))
    if content:
        texts = {"gen_ai.input.messages": input_of(turn), "gen_ai.output.messages": output_of(turn)}
        span.attributes.extend(_attributes(texts))
    if turn.error is not None:
        kind = turn.engine.fault or "error"
        span.attributes.extend(_attributes({"error.type": kind}))
        span.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR, message=turn.error if content else kind))
    return span


def _of_call(turn: Turn, operation: str, model: str) -> Mapping[str, Attribute]:
    usage, provider, sampling, policy = turn.usage, turn.provider, turn.sampling, turn.policy
    name = policy_name(policy.role, policy.version, policy.digest) if policy.digest else None
    applied = turn.applied_by not in (None, NOT_APPLIED)
    seconds = turn.first_token_ms / 1000 if turn.first_token_ms is not None else None
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": turn.engine.name,
        "gen_ai.request.model": model,
        "gen_ai.request.temperature": sampling.temperature if sampling else None,
        "gen_ai.request.max_tokens": sampling.max_tokens if sampling else None,
        "gen_ai.response.model": (provider.model if provider else None) or name,
        "gen_ai.response.id": provider.id if provider else None,
        "gen_ai.response.finish_reasons": [turn.finish_reason] if turn.finish_reason else None,
        "gen_ai.response.time_to_first_chunk": seconds,
        "gen_ai.usage.input_tokens": usage.prompt if usage else None,
        "gen_ai.usage.output_tokens": usage.completion if usage else None,
        "gen_ai.usage.cache_read.input_tokens": usage.cached if usage else None,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning if usage else None,
        "gen_ai.prompt.name": turn.role if applied else None,
        "gen_ai.prompt.version": str(policy.version) if applied else None,
        "gen_ai.conversation.id": turn.session_id,
        "gen_ai.agent.id": turn.agent_id,
        "ratchet.turn.id": turn.turn_id,
        "ratchet.cost_usd": turn.cost_usd,
    }


def _of_arm(turn: Turn) -> Mapping[str, Attribute]:
    """The role as a feature flag: where a canary runs, trajectories are drawn; evaluations name who answers them."""
    policy = turn.policy
    reason = "targeting_match" if policy.arm == PINNED else "split" if policy.weight else "static"
    return {
        "feature_flag.provider.name": OWN_SCOPE,
        "feature_flag.key": policy.role,
        "feature_flag.result.variant": policy.arm,
        "feature_flag.result.reason": reason,
        "feature_flag.version": str(policy.version),
        "feature_flag.context.id": turn.trajectory_id,
        "ratchet.policy.digest": policy.digest or None,
        "ratchet.canary.weight": policy.weight,
    }


def reward_span(received: Received[Reward], *, content: bool) -> Span | None:
    """A revision of a reward, below the trajectory's last call; its components are events within.

    None where its agent does not record the trace.
    """
    reward, above = received.message, _named(received)
    if above is not None and not above.sampled:
        return None
    trace_id = above.trace_id if above else trace_id_of(reward.trajectory_id)
    function, part = reward.reward_function, reward.reward_components.get(OUTCOME)
    span = _span(trace_id, span_id_of(reward.reward_id), EVALUATION, reward.timestamp, above)
    applying = {name: component for name, component in reward.reward_components.items() if component.applicable}
    status = part.raw_data.get("status") if part and part.applicable and part.raw_data else None
    shares = [f"{name} {component.score:.3g} x {component.weight:.3g}" for name, component in applying.items()]
    whole: dict[str, Attribute] = {
        "gen_ai.evaluation.name": REWARD,
        "gen_ai.evaluation.score.value": reward.total_reward,
        "gen_ai.evaluation.score.label": str(status) if status is not None else None,
        "gen_ai.evaluation.explanation": " + ".join(shares) or "no component applies",
        "gen_ai.conversation.id": reward.session_id,
        "feature_flag.key": reward.role,
        "ratchet.trajectory.id": reward.trajectory_id,
        "ratchet.reward.revision": reward.revision,
        "ratchet.reward.function": f"{function.name}@{function.version}" if function else None,
        "ratchet.reward.confidence": reward.metadata.confidence,
    }
    span.attributes.extend(_attributes(whole))
    span.events.extend(_event(reward, name, component, content=content) for name, component in applying.items())
    return span


def _event(reward: Reward, name: str, component: RewardComponent, *, content: bool) -> Span.Event:
    judged: dict[str, Attribute] = {
        "gen_ai.evaluation.name": name,
        "gen_ai.evaluation.score.value": component.score,
        "gen_ai.evaluation.explanation": component.reasoning if content else None,
        "ratchet.reward.weight": component.weight,
    }
    return Span.Event(name=EVALUATION, time_unix_nano=_ns(reward.timestamp), attributes=_attributes(judged))


def training_span(received: Received[TrainingStatus]) -> Span | None:
    """An attempt of a job that completed, the root of the job's trace, or failed, below it; None while it goes on."""
    status, job = received.message, _named(received)
    if status.status not in ENDED or job is None:
        return None
    above = None if status.status == COMPLETED else job
    usage, samples = status.resource_usage, status.metadata.training_samples if status.metadata else None
    took_s = (usage.total_training_time_seconds or 0.0) if usage else 0.0
    span_id = span_id_of(status.event_id) if above else job.span_id
    span = _span(job.trace_id, span_id, f"train {status.role}", status.timestamp, above)
    span.start_time_unix_nano = _ns(status.timestamp, -took_s)
    attributes: dict[str, Attribute] = {
        "feature_flag.key": status.role,
        "ratchet.training_job.id": status.training_job_id,
        "ratchet.training_job.attempt": status.attempt,
        "ratchet.training_job.samples": samples,
        "ratchet.dataset.digest": status.dataset_digest,
        "ratchet.policy.digest": status.artifacts.digest if status.artifacts else None,
        "ratchet.cost_usd": usage.cost_usd if usage else None,
        "error.type": str(status.error.code) if status.error else None,
    }
    span.attributes.extend(_attributes(attributes))
    if status.error is not None:
        span.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR, message=status.error.message))
    return span


def decision_span(received: Received[ModelRollout]) -> Span | None:
    """A decision of a rollout and why: in the trace of the job that made the candidate, else in one of its own."""
    decided, above = received.message, _named(received)
    trace_id = above.trace_id if above else trace_id_of(decided.rollout_id)
    name = f"rollout {decided.verdict} {decided.role}"
    span = _span(trace_id, span_id_of(decided.event_id), name, decided.timestamp, above)
    samples, evidence = decided.samples or {}, decided.e_values or {}
    attributes: dict[str, Attribute] = {
        "feature_flag.provider.name": OWN_SCOPE,
        "feature_flag.key": decided.role,
        "feature_flag.version": str(decided.to_version),
        "ratchet.rollout.id": decided.rollout_id,
        "ratchet.rollout.verdict": decided.verdict,
        "ratchet.rollout.reason": decided.reason,
        "ratchet.rollout.actor": decided.actor,
        "ratchet.rollout.from_version": decided.from_version,
        "ratchet.rollout.stage": decided.stage.index,
        "ratchet.canary.weight": decided.stage.weight,
        **{f"ratchet.rollout.samples.{arm}": number for arm, number in samples.items()},
        **{
            f"ratchet.rollout.e_value.{test}.{metric}": value
            for test, by_metric in evidence.items()
            for metric, value in by_metric.items()
        },
    }
    span.attributes.extend(_attributes(attributes))
    return span


def _named(received: Received[Message]) -> Trace | None:
    """The span that the message's header names."""
    return read_traceparent(received.headers.get(TRACEPARENT, ""))


def _span(trace_id: str, span_id: str, name: str, at: datetime, above: Trace | None) -> Span:
    """A span that ends as it begins."""
    return Span(
        trace_id=bytes.fromhex(trace_id),
        span_id=bytes.fromhex(span_id),
        parent_span_id=bytes.fromhex(above.span_id) if above else b"",
        name=name,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=_ns(at),
        end_time_unix_nano=_ns(at),
    )


def _ns(at: datetime, after_s: float = 0.0) -> int:
    """Nanoseconds since 1970, within what a span can hold: a clock may be wrong by centuries."""
    return int(min(max(0.0, at.timestamp() + after_s), _LAST_S) * 1_000_000) * 1000


def _attributes(values: Mapping[str, Attribute]) -> list[KeyValue]:
    return [KeyValue(key=name, value=_value(value)) for name, value in values.items() if value is not None]


def _value(value: Attribute) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=min(value, _LARGEST))  # a provider's count of tokens may be anything
        case float():
            return AnyValue(double_value=value)
        case str():
            return AnyValue(string_value=value)
        case _:
            return AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=text) for text in value or ()]))

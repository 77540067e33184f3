"""A call as a turn: the new part of the prompt, the answer, and whether a learner may use it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from typing import cast

import msgspec

from ratchet.core.contract import JsonObject, PolicyClaim, Turn
from ratchet.core.contract.traces import Trace
from ratchet.core.contract.turn import Applied, Constraint, EngineInfo, PromptTokens, Sampling, Trainable
from ratchet.core.rules.capture import Reason
from ratchet.core.rules.recorded import ids_digest
from ratchet.dialects.answers import PROCESSED, RAW, Answer
from ratchet.dialects.requests import CallRequest
from ratchet.gateway.domain.past_calls import PastCall

CANCELLED, CACHED = Reason.CANCELLED, Reason.CACHED
UNSEARCHABLE, CONSTRAINED, MULTIMODAL = Reason.UNSEARCHABLE_PROMPT, Reason.CONSTRAINED, Reason.MULTIMODAL
"""Reasons for which no learner may use a call, whatever its answer holds: the agent disconnected before it had the
answer; the cache answered in the policy's place; the prompt came as token ids, which the recorder cannot search for
secrets; the request moved the policy's distribution as no learner can compute again; the prompt holds more than
text."""
TOO_LARGE, LOST, UNSEARCHED, INVALID = Reason.TOO_LARGE, Reason.LOST, Reason.UNSEARCHED, Reason.INVALID
"""Reasons for which a turn records only that its call happened: recording had no room for the call; its recorder
process died of it; the recorder cannot search it for secrets; it breaks the contract."""


class TurnHeader(msgspec.Struct, frozen=True, array_like=True):
    """The part of a turn that the gateway knows before an engine answers; it holds no text of the conversation."""

    turn_id: str
    trajectory_id: str
    role: str
    at: datetime
    policy: PolicyClaim
    engine: EngineInfo
    turns: int
    """Turns of the trajectory in this role before it."""
    session_id: str | None = None
    agent_id: str | None = None
    user_ref: str | None = None
    trajectory_by: str | None = None
    """By what the gateway recognised the trajectory."""
    parent_hint: str | None = None
    """The call whose answer it recognised."""
    key_id: str | None = None
    trace: Trace | None = None
    trajectory_name: str | None = None
    """The name that the agent gave the trajectory, where that is no UUID."""
    applied_by: str | None = None
    """What wrote the policy's bundle into the request, as turns name it."""


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """The part of a turn that the agent's request gives, and the earlier call that it continues."""

    messages: Sequence[JsonObject]
    tools: Sequence[JsonObject] | None
    sampling: Sampling
    digest: str
    """sha256 of the request."""
    index: int = 0
    attempt: int = 1
    parent: PastCall | None = None
    continues: bool = True
    """The prompt begins with the parent's conversation; else only the link is known."""
    parent_hint: str | None = None
    """The call that it continues, where nothing more of that is known."""
    parameters: JsonObject | None = None
    constraint: Constraint | None = None
    """What the answer was constrained to."""
    applied: Applied | None = None
    """What the policy's bundle made of it."""


LOGPROB_NOISE = 1e-6
"""How far above 0 rounding may take the log-probability of a certain token."""
LEAST_LOGPROB = -9999.0
"""What vLLM writes for minus infinity: no token that was drawn has it."""
_NOT_WHOLE = frozenset({None, "error", "abort"})
"""Ends of an answer that the policy has not given: the engine stopped in its midst (vLLM's words)."""


def policy_label(header: TurnHeader) -> str:
    """The policy of a call as metrics name it: an upstream's model is version 0 of the role."""
    return f"{header.policy.role}@{header.policy.version}"


def without_ids(answer: Answer, reason: Reason) -> Answer:
    """The answer without tokens, which no learner may use for `reason`."""
    return replace(answer, prompt_ids=None, output_ids=None, logprobs=None, barred=reason)


def turn_of(header: TurnHeader, request: TurnRequest, answer: Answer, latency_ms: float | None) -> Turn:
    """The turn, before redaction. What continues a redacted call carries no tokens: they would decode to the secret."""
    parent = request.parent
    known = parent.messages if parent is not None and request.continues else 0
    redacted = parent is not None and known > 0 and parent.redacted
    parent_id = parent.turn_id if parent else request.parent_hint
    trainable = (
        Trainable(ok=False, reason=Reason.REDACTED)
        if redacted
        else trainable_of(request.sampling, answer, constrained=request.constraint is not None)
    )
    tools_digest = hashlib.sha256(msgspec.json.encode(request.tools)).hexdigest() if request.tools else None
    known_tools = parent is not None and parent.tools_digest == tools_digest
    turn = msgspec.structs.replace(
        bare_turn(header, request.digest, trainable.reason or "", latency_ms),
        index=request.index,
        messages=list(request.messages[known:]),
        trainable=trainable,
        session_id=header.session_id,
        agent_id=header.agent_id,
        trajectory_name=header.trajectory_name,
        attempt=request.attempt,
        parent_turn_id=parent_id,
        parent_messages=0 if parent_id and not known else None,
        trace=header.trace,
        tools_digest=tools_digest,
        tools=list(request.tools) if request.tools and not known_tools else None,
        applied=_new_part(request.applied, parent, continues=known > 0),
        response=answer.message,
        sampling=request.sampling,
        parameters=request.parameters,
        provider=answer.provider,
        usage=answer.usage,
        finish_reason=answer.finish_reason,
        error=answer.error,
    )
    if redacted or answer.prompt_ids is None or answer.output_ids is None:
        return turn
    same = request.sampling.temperature == 1.0 and request.constraint is None
    mode = answer.logprob_mode or (PROCESSED if same else None)
    return msgspec.structs.replace(
        turn,
        prompt_token_ids=_delta(answer.prompt_ids, parent),
        output_token_ids=list(answer.output_ids),
        constraint=request.constraint,
        behavior_logprobs=list(answer.logprobs) if answer.logprobs is not None else None,
        logprob_mode=mode if answer.logprobs is not None else None,
    )


def applied_of(sent: CallRequest, got: CallRequest, choice: int = 0) -> Applied | None:
    """How the request that an engine got differs from the one that the agent sent; `choice`: of which answer.

    None where only sampling values do, which turns have as the engine was asked.
    """
    before, after = sent.messages_of(choice), got.messages_of(choice)
    same = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(reversed(before), reversed(after), strict=False))
    )
    shape = got.value("response_format")
    applied = Applied(
        digest="",
        replaced=len(before) - same,
        head=list(after[: len(after) - same]),
        tools=got.tools if got.tools != sent.tools else None,
        parameters={"response_format": shape} if shape != sent.value("response_format") else None,
    )
    if not (applied.replaced or applied.head or applied.tools is not None or applied.parameters):
        return None
    digest = hashlib.sha256(msgspec.json.encode(applied, order="deterministic")).hexdigest()
    return msgspec.structs.replace(applied, digest=digest)


def _new_part(applied: Applied | None, parent: PastCall | None, *, continues: bool) -> Applied | None:
    """What a turn says of it: where the call that it continues had the same, only the digest.

    All of it for the redactor to search, where that call was redacted and does not bar this one's tokens.
    """
    if applied is None or parent is None or parent.applied != applied.digest or (parent.redacted and not continues):
        return applied
    return Applied(digest=applied.digest)


def bare_turn(header: TurnHeader, digest: str, reason: str, latency_ms: float | None) -> Turn:
    """A turn that records only that its call happened, in which trajectory, and how long it took."""
    return Turn(
        turn_id=header.turn_id,
        trajectory_id=header.trajectory_id,
        timestamp=header.at,
        index=header.turns,
        request_digest=digest,
        messages=[],
        policy=header.policy,
        engine=header.engine,
        trainable=Trainable(ok=False, reason=reason),
        role=header.role,
        user_ref=header.user_ref,
        trajectory_by=header.trajectory_by,
        applied_by=header.applied_by,
        key_id=header.key_id,
        trace=header.trace and msgspec.structs.replace(header.trace, baggage=None),
        latency_ms=latency_ms,
    )


def _delta(prompt_ids: Sequence[int], parent: PastCall | None) -> PromptTokens:
    """What the prompt adds to its parent's tokens, of which another process may have sent number and digest only."""
    if parent is not None and parent.ids_elsewhere is not None:
        length, digest = parent.ids_elsewhere
        if ids_digest(prompt_ids[:length]) == digest:
            return PromptTokens(suffix=list(prompt_ids[length:]), prefix_length=length, prefix_digest=digest)
    return prompt_delta(prompt_ids, parent.token_ids if parent else ())


def prompt_delta(prompt_ids: Sequence[int], parent_ids: Sequence[int]) -> PromptTokens:
    """The prompt as the length of its common prefix with the parent's tokens, and the suffix that follows."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(prompt_ids, parent_ids, strict=False))
    length = len(parent_ids) if list(prompt_ids[: len(parent_ids)]) == list(parent_ids) else sum(1 for _ in same)
    digest = ids_digest(prompt_ids[:length]) if length else None
    return PromptTokens(suffix=list(prompt_ids[length:]), prefix_length=length, prefix_digest=digest)


def trainable_of(sampling: Sampling, answer: Answer, *, constrained: bool = False) -> Trainable:
    """Policy gradients need exactly the tokens that were sampled, from the distribution that is logged.

    Of a `constrained` answer that is the distribution after masking, and the engine must say so.
    """
    reason = _missing(answer) or _distorted(sampling) or _unlike(sampling, answer, constrained)
    return Trainable(ok=reason is None, reason=reason)


def _missing(answer: Answer) -> Reason | None:
    """Why the answer does not hold exactly the tokens that were sampled."""
    if answer.error is not None:
        return Reason.ERROR
    if answer.barred is not None:
        return answer.barred
    if not answer.prompt_ids or not answer.output_ids:
        return Reason.NO_TOKEN_IDS
    if answer.logprobs is None:
        return Reason.NO_LOGPROBS
    return _doubtful(answer, answer.output_ids, answer.logprobs)


def _doubtful(answer: Answer, output_ids: Sequence[int], logprobs: Sequence[float]) -> Reason | None:
    """Why the tokens that the answer holds may not be all, or not those that were drawn."""
    usage = answer.usage
    if len(output_ids) != len(logprobs):
        return Reason.COUNT_MISMATCH
    if usage is not None and (usage.prompt, usage.completion) != (len(answer.prompt_ids or ()), len(output_ids)):
        return Reason.COUNT_MISMATCH
    if answer.finish_reason in _NOT_WHOLE:
        return Reason.ERROR
    if usage is None:  # ids and log-probabilities come together, and so they are lost together
        return Reason.NO_USAGE
    given = cast("Sequence[object]", logprobs)  # NaN is neither above nor below anything
    possible = all(isinstance(value, float | int) and LEAST_LOGPROB < value <= LOGPROB_NOISE for value in given)
    return None if possible else Reason.IMPOSSIBLE_LOGPROBS


def _distorted(sampling: Sampling) -> Reason | None:
    """The sampling value that truncates or reweighs the distribution."""
    if sampling.temperature <= 0:
        return Reason.GREEDY
    if sampling.top_p != 1.0:
        return Reason.TOP_P
    if sampling.top_k not in {None, 0, -1}:
        return Reason.TOP_K
    if sampling.min_p:
        return Reason.MIN_P
    neutral = sampling.repetition_penalty in {None, 1.0}
    return Reason.PENALTY if sampling.presence_penalty or sampling.frequency_penalty or not neutral else None


def _unlike(sampling: Sampling, answer: Answer, constrained: bool) -> Reason | None:
    """Log-probabilities of another distribution than the one drawn from. Free at temperature 1, both are the same."""
    if answer.logprob_mode == PROCESSED or (sampling.temperature == 1.0 and not constrained):
        return None
    return Reason.RAW_LOGPROBS if answer.logprob_mode == RAW else Reason.UNKNOWN_LOGPROBS

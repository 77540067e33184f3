"""A call as a turn: the new part of the prompt, the answer, and whether a learner may use it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile

import msgspec

from ratchet.contract import JsonObject, PolicyClaim, Turn
from ratchet.contract.turn import EngineInfo, PromptTokens, Sampling, Trainable
from ratchet.gateway.domain.answers import PROCESSED, RAW, Answer
from ratchet.gateway.domain.memory import PastCall
from ratchet.rules.recorded import ids_digest

CANCELLED, CACHED = "cancelled", "cached"
UNSEARCHABLE, CONSTRAINED, MULTIMODAL = "unsearchable_prompt", "constrained", "multimodal"
"""Reasons for which no learner may use a call, whatever its answer holds: the agent disconnected before it had the
answer; the cache answered in the policy's place; the prompt came as token ids, which the recorder cannot search for
secrets; the request kept the policy from drawing freely; the prompt holds more than text."""
TOO_LARGE, LOST, UNSEARCHED, INVALID = "too_large", "lost", "unsearched", "invalid"
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


def without_ids(answer: Answer, reason: str) -> Answer:
    """The answer without tokens, which no learner may use for `reason`."""
    return replace(answer, prompt_ids=None, output_ids=None, logprobs=None, barred=reason)


def turn_of(header: TurnHeader, request: TurnRequest, answer: Answer, latency_ms: float | None) -> Turn:
    """The turn, before redaction. What continues a redacted call carries no tokens: they would decode to the secret."""
    parent = request.parent
    redacted = parent is not None and parent.redacted
    trainable = Trainable(ok=False, reason="redacted") if redacted else trainable_of(request.sampling, answer)
    tools_digest = hashlib.sha256(msgspec.json.encode(request.tools)).hexdigest() if request.tools else None
    known_tools = parent is not None and parent.tools_digest == tools_digest
    turn = msgspec.structs.replace(
        bare_turn(header, request.digest, trainable.reason or "", latency_ms),
        index=request.index,
        messages=list(request.messages[parent.messages :] if parent else request.messages),
        trainable=trainable,
        session_id=header.session_id,
        agent_id=header.agent_id,
        attempt=request.attempt,
        parent_turn_id=parent.turn_id if parent else None,
        tools_digest=tools_digest,
        tools=list(request.tools) if request.tools and not known_tools else None,
        response=answer.message,
        sampling=request.sampling,
        usage=answer.usage,
        finish_reason=answer.finish_reason,
        error=answer.error,
    )
    if redacted or answer.prompt_ids is None or answer.output_ids is None:
        return turn
    mode = answer.logprob_mode or (PROCESSED if request.sampling.temperature == 1.0 else None)
    return msgspec.structs.replace(
        turn,
        prompt_token_ids=prompt_delta(answer.prompt_ids, parent.token_ids if parent else ()),
        output_token_ids=list(answer.output_ids),
        behavior_logprobs=list(answer.logprobs) if answer.logprobs is not None else None,
        logprob_mode=mode if answer.logprobs is not None else None,
    )


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
        latency_ms=latency_ms,
    )


def without_tokens(turn: Turn, reason: str, redactions: Mapping[str, int] | None = None) -> Turn:
    """A turn that no learner may use: the token ids of a redacted text would decode to the secret."""
    return msgspec.structs.replace(
        turn,
        prompt_token_ids=None,
        output_token_ids=None,
        behavior_logprobs=None,
        logprob_mode=None,
        trainable=Trainable(ok=False, reason=reason),
        redactions=dict(redactions) if redactions else None,
    )


def prompt_delta(prompt_ids: Sequence[int], parent_ids: Sequence[int]) -> PromptTokens:
    """The prompt as the length of its common prefix with the parent's tokens, and the suffix that follows."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(prompt_ids, parent_ids, strict=False))
    length = len(parent_ids) if list(prompt_ids[: len(parent_ids)]) == list(parent_ids) else sum(1 for _ in same)
    digest = ids_digest(prompt_ids[:length]) if length else None
    return PromptTokens(suffix=list(prompt_ids[length:]), prefix_length=length, prefix_digest=digest)


def trainable_of(sampling: Sampling, answer: Answer) -> Trainable:
    """Policy gradients need exactly the tokens that were sampled, from the distribution that is logged."""
    reason = _missing(answer) or _distorted(sampling) or _unlike(sampling, answer)
    return Trainable(ok=reason is None, reason=reason)


def _missing(answer: Answer) -> str | None:
    """Why the answer does not hold exactly the tokens that were sampled."""
    if answer.error is not None:
        return "error"
    if answer.barred is not None:
        return answer.barred
    if not answer.prompt_ids or not answer.output_ids:
        return "no_token_ids"
    if answer.logprobs is None:
        return "no_logprobs"
    counts = {len(answer.output_ids), len(answer.logprobs)}
    if answer.usage is not None:
        counts.add(answer.usage.completion)
    agree = len(counts) == 1 and (answer.usage is None or answer.usage.prompt == len(answer.prompt_ids))
    return None if agree else "count_mismatch"


def _distorted(sampling: Sampling) -> str | None:
    """The sampling value that truncates or reweighs the distribution."""
    if sampling.temperature <= 0:
        return "greedy"
    if sampling.top_p != 1.0:
        return "top_p"
    if sampling.top_k not in {None, 0, -1}:
        return "top_k"
    if sampling.min_p:
        return "min_p"
    neutral = sampling.repetition_penalty in {None, 1.0}
    return "penalty" if sampling.presence_penalty or sampling.frequency_penalty or not neutral else None


def _unlike(sampling: Sampling, answer: Answer) -> str | None:
    """Log-probabilities of another distribution than the one drawn from. At temperature 1 both are the same."""
    if sampling.temperature == 1.0 or answer.logprob_mode == PROCESSED:
        return None
    return "raw_logprobs" if answer.logprob_mode == RAW else "unknown_logprobs"

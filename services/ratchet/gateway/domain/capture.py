"""A call as a turn: what was new in the prompt, what came back, and whether a learner may use it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from typing import Any

import msgspec

from ratchet.contract import JsonObject, PolicyClaim, Turn
from ratchet.contract.turn import EngineInfo, PromptTokens, Sampling, Trainable, Usage
from ratchet.gateway.domain.conversations import PastCall
from ratchet.rules.recorded import ids_digest

CANCELLED, CACHED = "cancelled", "cached"
UNSEARCHABLE, CONSTRAINED, MULTIMODAL = "unsearchable_prompt", "constrained", "multimodal"
"""Reasons for which no learner may use a call, whatever came back: the agent went away before it had the answer; no
policy was asked; the prompt came as token ids, which cannot be searched for what must not be published; the request
kept the policy from drawing freely; the prompt holds more than text."""
TOO_LARGE, LOST, UNSEARCHED, INVALID = "too_large", "lost", "unsearched", "invalid"
"""Reasons for which a turn holds nothing of its call but that it happened: recording had no room for it; its recorder
died of it; it cannot be searched for secrets; what it says does not fit the contract."""
PROCESSED, RAW = "processed", "raw"
"""Log-probabilities after temperature, what the sampler drew from; and before."""
MODES: Mapping[object, str] = {"processed_logprobs": PROCESSED, "raw_logprobs": RAW}
"""vLLM's names for them, in an answer's `logprobs_mode` and in the setting."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the engine said, taken apart."""

    message: JsonObject | None
    prompt_ids: Sequence[int] | None = None
    output_ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    logprob_mode: str | None = None
    """What the log-probabilities are of; None where nobody says."""
    usage: Usage | None = None
    finish_reason: str | None = None
    error: str | None = None
    barred: str | None = None
    """Why no learner may use it, whatever it holds."""


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a call before it is made, without what it says."""

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
class Said:
    """What the agent's request says, and which earlier call it continues."""

    messages: Sequence[JsonObject]
    tools: Sequence[JsonObject] | None
    sampling: Sampling
    digest: str
    """sha256 of the request."""
    index: int = 0
    attempt: int = 1
    parent: PastCall | None = None


def without_ids(answer: Answer, reason: str) -> Answer:
    """The answer without tokens, which nobody may use for `reason`."""
    return replace(answer, prompt_ids=None, output_ids=None, logprobs=None, barred=reason)


def turn_of(asked: Asked, said: Said, answer: Answer, latency_ms: float | None) -> Turn:
    """The turn, before redaction."""
    parent = said.parent
    redacted = parent is not None and parent.redacted
    trainable = Trainable(ok=False, reason="redacted") if redacted else trainable_of(said.sampling, answer)
    digest = tools_digest(said.tools)
    known_tools = parent is not None and parent.tools_digest == digest
    turn = msgspec.structs.replace(
        bare_turn(asked, said.digest, trainable.reason or "", latency_ms),
        index=said.index,
        messages=list(said.messages[parent.messages :] if parent else said.messages),
        trainable=trainable,
        session_id=asked.session_id,
        agent_id=asked.agent_id,
        attempt=said.attempt,
        parent_turn_id=parent.turn_id if parent else None,
        tools_digest=digest,
        tools=list(said.tools) if said.tools and not known_tools else None,
        response=answer.message,
        sampling=said.sampling,
        usage=answer.usage,
        finish_reason=answer.finish_reason,
        error=answer.error,
    )
    return turn if redacted else _with_tokens(turn, said, answer)


def bare_turn(asked: Asked, digest: str, reason: str, latency_ms: float | None) -> Turn:
    """A turn that holds nothing of its call but that it happened, to whom, and how long it took."""
    return Turn(
        turn_id=asked.turn_id,
        trajectory_id=asked.trajectory_id,
        timestamp=asked.at,
        index=asked.turns,
        request_digest=digest,
        messages=[],
        policy=asked.policy,
        engine=asked.engine,
        trainable=Trainable(ok=False, reason=reason),
        role=asked.role,
        user_ref=asked.user_ref,
        latency_ms=latency_ms,
    )


def without_tokens(turn: Turn, reason: str, redactions: Mapping[str, int] | None = None) -> Turn:
    """A turn that no learner may use: of what was redacted, token ids would decode to the secret."""
    return msgspec.structs.replace(
        turn,
        prompt_token_ids=None,
        output_token_ids=None,
        behavior_logprobs=None,
        logprob_mode=None,
        trainable=Trainable(ok=False, reason=reason),
        redactions=dict(redactions) if redactions else None,
    )


def trainable_of(sampling: Sampling, answer: Answer) -> Trainable:
    """Policy gradients need exactly the tokens that were sampled, from the distribution that is logged."""
    reason = _unusable(answer) or _distorted(sampling) or _unlike(sampling, answer)
    return Trainable(ok=reason is None, reason=reason)


def prompt_delta(prompt_ids: Sequence[int], parent_ids: Sequence[int]) -> PromptTokens:
    """The prompt as its common beginning with the parent's tokens and what follows."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(prompt_ids, parent_ids, strict=False))
    length = len(parent_ids) if list(prompt_ids[: len(parent_ids)]) == list(parent_ids) else sum(1 for _ in same)
    digest = ids_digest(prompt_ids[:length]) if length else None
    return PromptTokens(suffix=list(prompt_ids[length:]), prefix_length=length, prefix_digest=digest)


def tools_digest(tools: Sequence[JsonObject] | None) -> str | None:
    """sha256 of the offered tools; None without tools."""
    return hashlib.sha256(msgspec.json.encode(tools)).hexdigest() if tools else None


def usage_of(body: Mapping[str, Any]) -> Usage | None:
    """The tokens that an engine says it spent. `Any`: it is JSON from another process, read member by member."""
    spent = body.get("usage")
    if not spent:
        return None
    details = spent.get("prompt_tokens_details") or {}
    return Usage(
        prompt=spent.get("prompt_tokens", 0),
        completion=spent.get("completion_tokens", 0),
        cached=details.get("cached_tokens"),
    )


def _with_tokens(turn: Turn, said: Said, answer: Answer) -> Turn:
    if answer.prompt_ids is None or answer.output_ids is None:
        return turn
    parent_ids = said.parent.token_ids if said.parent else ()
    alike = PROCESSED if said.sampling.temperature == 1.0 else None
    return msgspec.structs.replace(
        turn,
        prompt_token_ids=prompt_delta(answer.prompt_ids, parent_ids),
        output_token_ids=list(answer.output_ids),
        behavior_logprobs=list(answer.logprobs) if answer.logprobs is not None else None,
        logprob_mode=(answer.logprob_mode or alike) if answer.logprobs is not None else None,
    )


def _unusable(answer: Answer) -> str | None:
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
    """Log-probabilities of another distribution than the one that was drawn from. At temperature 1 they are one."""
    if sampling.temperature == 1.0 or answer.logprob_mode == PROCESSED:
        return None
    return "raw_logprobs" if answer.logprob_mode == RAW else "unknown_logprobs"

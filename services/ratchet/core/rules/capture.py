"""Why no learner may use a call: every reason, what it means, and what to change so that later calls are trainable.

    REASONS[Reason.TOP_P].remedy   # "Leave `top_p` at 1, or unset."

A turn carries the first reason against it (`trainable.reason`). `Reason` is the type of what the gateway gives, so a
reason that is missing here does not pass the type checker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Reason(StrEnum):
    """Why a call is not trainable, in the order in which the tables name them."""

    GREEDY = "greedy"
    TOP_P = "top_p"
    TOP_K = "top_k"
    MIN_P = "min_p"
    PENALTY = "penalty"
    CONSTRAINED = "constrained"
    MULTIMODAL = "multimodal"
    UNSEARCHABLE_PROMPT = "unsearchable_prompt"
    REDACTED = "redacted"
    CANCELLED = "cancelled"
    NO_TOKEN_IDS = "no_token_ids"  # noqa: S105 - no secret
    NO_LOGPROBS = "no_logprobs"
    COUNT_MISMATCH = "count_mismatch"
    NO_USAGE = "no_usage"
    IMPOSSIBLE_LOGPROBS = "impossible_logprobs"
    UNREADABLE = "unreadable"
    RAW_LOGPROBS = "raw_logprobs"
    UNKNOWN_LOGPROBS = "unknown_logprobs"
    ERROR = "error"
    CACHED = "cached"
    MIXED = "mixed"
    TOO_LARGE = "too_large"
    LOST = "lost"
    UNSEARCHED = "unsearched"
    INVALID = "invalid"
    PARENT_MISSING = "parent_missing"
    PREFIX_MISMATCH = "prefix_mismatch"
    UNKNOWN = "unknown"


Place = Literal["agent", "engine", "gateway"]
"""Where a change helps: in the agent, in how the engine is started or which one answers, in the gateway's settings."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What a reason means, and what to change."""

    place: Place
    meaning: str
    remedy: str


REASONS: Mapping[str, Advice] = {
    Reason.GREEDY: Advice(
        "agent",
        "The temperature was 0: the answer was not drawn.",
        "Set a temperature above 0, best 1.",
    ),
    Reason.TOP_P: Advice("agent", "`top_p` cut the distribution.", "Leave `top_p` at 1, or unset."),
    Reason.TOP_K: Advice("agent", "`top_k` cut the distribution.", "Leave `top_k` unset."),
    Reason.MIN_P: Advice("agent", "`min_p` cut the distribution.", "Leave `min_p` unset."),
    Reason.PENALTY: Advice(
        "agent",
        "A penalty changed the distribution from token to token.",
        "Leave `presence_penalty`, `frequency_penalty` and `repetition_penalty` unset.",
    ),
    Reason.CONSTRAINED: Advice(
        "agent",
        "The request moved the distribution in a way that no learner can compute again.",
        "Ask without `logit_bias`, `best_of`, `min_tokens`, banned or allowed tokens,"
        " and with schemas that xgrammar supports.",
    ),
    Reason.MULTIMODAL: Advice(
        "agent",
        "The prompt or the answer holds more than text.",
        "Send prompts of text alone, and ask for text alone, in the calls that are to teach.",
    ),
    Reason.UNSEARCHABLE_PROMPT: Advice(
        "agent",
        "The prompt came as token ids, which the gateway cannot search for secrets.",
        "Send the prompt as messages or text.",
    ),
    Reason.REDACTED: Advice(
        "agent",
        "The call, or one that it continues, held a secret or personal data; its tokens would decode to that.",
        "Keep secrets and personal data out of prompts and tool results; send placeholders.",
    ),
    Reason.CANCELLED: Advice(
        "agent",
        "The agent disconnected before the end of the answer.",
        "Raise the agent's time-out, and read streams to their end.",
    ),
    Reason.NO_TOKEN_IDS: Advice(
        "engine",
        "The answer has no token ids: a provider gave it, or an engine that does not return them.",
        "Serve the role by a policy on vLLM (0.10.2 or later) or `engine_local`; what came before the first stays so.",
    ),
    Reason.NO_LOGPROBS: Advice(
        "engine",
        "The answer has no log-probabilities.",
        "Serve the role by an engine that returns them: vLLM without `--max-logprobs 0`, or `engine_local`.",
    ),
    Reason.COUNT_MISMATCH: Advice(
        "engine",
        "The engine's counts of tokens, ids and log-probabilities differ, or it gave another number of answers than the"
        " agent asked for.",
        "Upgrade the engine, and leave out what sits between it and the gateway and rewrites answers.",
    ),
    Reason.NO_USAGE: Advice(
        "engine",
        "The engine did not say how many tokens the answer has, so nothing shows that all of them came.",
        "Leave out what sits between the engine and the gateway and drops `usage`, or ends streams before it.",
    ),
    Reason.IMPOSSIBLE_LOGPROBS: Advice(
        "engine",
        "A log-probability is above 0, no finite number, or that of a token which cannot be drawn (-9999 in vLLM).",
        "Upgrade the engine, and start it without plug-ins that change logits or log-probabilities.",
    ),
    Reason.UNREADABLE: Advice(
        "engine",
        "A part of the answer could not be read; the turn holds the rest.",
        "Upgrade the engine, and leave out what sits between it and the gateway and rewrites answers.",
    ),
    Reason.RAW_LOGPROBS: Advice(
        "engine",
        "The temperature is not 1, or the answer was constrained, and the log-probabilities are those before it.",
        "Start vLLM with `--logprobs-mode processed_logprobs` and set `RATCHET_ENGINE_LOGPROBS_MODE` to match;"
        " or use temperature 1.",
    ),
    Reason.UNKNOWN_LOGPROBS: Advice(
        "gateway",
        "The temperature is not 1, or the answer was constrained, and nothing says whether the log-probabilities are"
        " those after it.",
        "Set `RATCHET_ENGINE_LOGPROBS_MODE` to the engine's `--logprobs-mode`, best `processed_logprobs`; or"
        " use temperature 1.",
    ),
    Reason.ERROR: Advice(
        "engine", "The call failed.", "See the errors of the calls: `ratchet_gateway_calls_total` by status."
    ),
    Reason.CACHED: Advice(
        "gateway",
        "The gateway's cache answered in the policy's place.",
        "Set `RATCHET_GATEWAY_CACHE_BYTES` to 0, or a temperature above 0.",
    ),
    Reason.MIXED: Advice(
        "engine",
        "A fallback answered in this trajectory, so several models share it.",
        "Give the policies' engine room and time: see `ratchet_gateway_fallbacks_total`.",
    ),
    Reason.TOO_LARGE: Advice(
        "gateway",
        "The gateway had no room to record the call.",
        "Raise `RATCHET_GATEWAY_RECORDING_BYTES`, `..._STREAMS_BYTES` or `..._RECORDERS`, or send smaller requests.",
    ),
    Reason.LOST: Advice(
        "gateway",
        "The process that recorded the call died of it, or took too long.",
        "Give the gateway more memory, or send smaller requests; its log names the process.",
    ),
    Reason.UNSEARCHED: Advice(
        "agent",
        "The gateway could not search the call for secrets.",
        "Send less deeply nested messages and tool results.",
    ),
    Reason.INVALID: Advice(
        "agent",
        "The turn breaks the contract; the gateway's log names the member.",
        "Send that member in the form that OpenAI's API has for it.",
    ),
    Reason.PARENT_MISSING: Advice(
        "gateway",
        "The prompt builds on a call that was not recorded with its tokens.",
        "See that nothing is lost on the way (`ratchet_gateway_overflowed`, `ratchet status`).",
    ),
    Reason.PREFIX_MISMATCH: Advice(
        "gateway",
        "The prompt builds on tokens that are not those of the call before.",
        "Report it: two calls were linked that do not belong together.",
    ),
    Reason.UNKNOWN: Advice(
        "gateway", "The turn gives no reason that this version knows.", "Upgrade the reader to the writer's version."
    ),
}
"""By reason. `parent_missing` and `prefix_mismatch` are found when a snapshot joins the calls."""


def advice_of(reason: str) -> Advice:
    """What a stored reason means; one that this version does not know is `unknown`."""
    return REASONS.get(reason, REASONS[Reason.UNKNOWN])

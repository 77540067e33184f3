"""What the engines that hold policies have in common, and how their log-probabilities on a policy's probe are compared
with its trainer's, for every engine alike (ADR 43)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ratchet.core.contract.policy_manifest import BFLOAT16, FLOAT32, Probe

VLLM, ENGINE_LOCAL = "vllm", "engine_local"
"""The kinds of engines."""
ADAPTERS_ONLY = frozenset({VLLM})
"""Kinds that hold adapters of the one base model that they were started with, and no whole model."""
ANY_ROLE = "*"
"""In settings by role: every role that they do not name."""

POLICY_REFUSED = 424
"""Status of an answer to any call for a policy that this engine cannot serve, with the reason: its bytes are not the
ones that were named, its rank, base or kind does not fit. The request is not to blame. vLLM itself never answers so."""

POLICY_NOT_LOADED = "was found but could not be loaded"
"""What vLLM says, with status 400, after any failure of its workers to load an adapter: no memory, a dead engine core,
a caller that went away. It says nothing about the policy: Ratchet's plugin answers `POLICY_REFUSED` for one that does
not fit."""
MOST_LOADS = 16
"""Names of policies that an engine looks up, downloads or loads at a time; it refuses calls for any other one."""
LOADS_BUSY = f"{MOST_LOADS} other policies are being loaded: try again later"
PROCESSED_LOGPROBS, RAW_LOGPROBS = "processed_logprobs", "raw_logprobs"
"""vLLM's `--logprobs-mode`: after temperature and masks, as what was drawn from, or before."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far an engine's and the trainer's log-probabilities may be apart, over the tokens of a probe, in nats."""

    mean: float
    worst: float


PROBE_TOLERANCE = {FLOAT32: Tolerance(5e-4, 1e-3), BFLOAT16: Tolerance(0.05, 0.8)}
"""By the number format that both compute in."""


def tolerance_in(dtype: str | None) -> Tolerance:
    """The tolerance of a number format; of an unknown one that of bfloat16, the widest."""
    return PROBE_TOLERANCE.get(dtype or BFLOAT16, PROBE_TOLERANCE[BFLOAT16])


@dataclass(frozen=True, slots=True)
class ProbeDifference:
    """How far an engine's log-probabilities on a probe are from the trainer's, in nats."""

    tokens: int
    mean: float
    worst: float

    def within(self, dtype: str | None) -> bool:
        """Whether it is small enough for a number format."""
        tolerance = tolerance_in(dtype)
        return self.mean <= tolerance.mean and self.worst <= tolerance.worst

    def sentence(self, dtype: str | None) -> str:
        """The difference and what would be allowed, in words."""
        tolerance = tolerance_in(dtype)
        return (
            f"log-probabilities on the probe differ by {self.mean:.2g} nats in the mean and {self.worst:.2g} at most "
            f"from the trainer's; in {dtype or 'an unknown number format'} {tolerance.mean:g} and {tolerance.worst:g} "
            "are allowed"
        )


def damage_of(probe: Probe) -> str | None:
    """Why nothing can be compared with a probe; None when it can."""
    if len(probe.output_token_ids) != len(probe.logprobs):
        return "the manifest's probe has not one log-probability per token"
    if not probe.prompt_token_ids or not probe.output_token_ids:
        return "the manifest's probe has no tokens"
    if not all(map(math.isfinite, probe.logprobs)):
        return "the manifest's probe has log-probabilities that are not finite"
    return None


def difference_from(probe: Probe, logprobs: Sequence[float]) -> ProbeDifference:
    """The difference of an engine's finite log-probabilities, one for each token of the probe's output."""
    apart = [abs(ours - theirs) for ours, theirs in zip(logprobs, probe.logprobs, strict=True)] or [0.0]
    return ProbeDifference(len(logprobs), statistics.fmean(apart), max(apart))

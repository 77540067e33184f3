"""Gate `probe`: every replica that serves the role gives the trainer's log-probabilities on the manifest's probe.

The gate plays the probe through the engine's API, teacher-forced, `PLAYS` times or more on each replica, and compares
with the tolerance of the manifest's number format (`rules.engines`). It also determines whether the log-probabilities
of drawn tokens are the processed ones, at a temperature other than 1. Reason and evidence say what was compared on
which replica, and what was not: no probe in the manifest, an engine that scores no prompts or names no candidates, a
replica that is away. Where nothing was compared, its outcome is `not_run`.

A mismatch refuses the candidate where no replica ever gives the trainer's values, and none fails on stable's probe.
Else a replica is at fault: the gate waits, and names it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from ratchet.bus.message import JsonObject
from ratchet.canary_deployer.domain.gating import PROBE
from ratchet.canary_deployer.domain.probing import (
    PROCESSED,
    RAW,
    TEMPERATURE,
    WORDS,
    ReplicaProbe,
    reported_mode,
    widest_pair,
)
from ratchet.canary_deployer.domain.rollout import FAILED, NOT_RUN, PASSED, GateResult
from ratchet.canary_deployer.gates.base import ReadManifest
from ratchet.canary_deployer.replicas import CONTROL_IDS, MEND, Checked, Replica, ReplicaChecks, ScoredToken
from ratchet.core.contract.policy_manifest import MODEL, PolicyManifest
from ratchet.core.contract.state import PolicyVersion
from ratchet.core.errors import DigestMismatch, NotFound, Rejected, Unavailable
from ratchet.core.rules.engines import damage_of, difference_from, tolerance_in

PLAYS = 3
"""A replica whose answers differ only now and then shows it in one of several tries, or not at all."""
MOST_DOUBTS = 5
"""Each time that a replica was at fault doubles the plays of the next try, so often: else it would pass by chance."""
CANDIDATES = 20
"""As many as vLLM gives by default (`--max-logprobs`)."""
NO_PROBE = "the manifest has no probe: no log-probabilities were compared"


@dataclass(frozen=True, slots=True)
class ProbeGate:
    """Compares log-probabilities where they can be compared."""

    checks: ReplicaChecks
    read_manifest: ReadManifest
    doubts: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """By policy and replica: how often it was at fault."""

    async def check(self, candidate: PolicyVersion, stable: PolicyVersion | None) -> GateResult:
        """Play the candidate's probe; stable answers first, and so is resident too before traffic moves."""
        evidence: JsonObject = {"policy": candidate.name, "digest": candidate.digest, "uri": candidate.uri}
        try:
            manifest = await self.read_manifest(candidate)
            if (damage := damage_of(manifest.probe) if manifest.probe else None) is not None:
                raise Rejected(damage)
            for replica in self.checks.engines.replicas(candidate.role) if manifest.kind == MODEL else ():
                if replica.adapters_only:
                    holds = f"{replica.name} (vllm) holds adapters of its one base model only"
                    raise Rejected(f"it is a whole model, and {holds}")
            played = await self.checks.on_each(candidate, stable, partial(self._play, manifest))
        except (Rejected, NotFound, DigestMismatch) as error:
            return GateResult(PROBE, FAILED, f"the engine cannot serve it: {error}", {**evidence, "compared": False})
        evidence |= _figures(played, manifest)
        mismatch = await self._mismatch(played, candidate, manifest.dtype, stable)
        if mismatch is not None:
            return GateResult(PROBE, FAILED, mismatch, evidence)
        outcome = PASSED if evidence["compared"] else NOT_RUN
        return GateResult(PROBE, outcome, _summary(played, manifest), evidence)

    async def _mismatch(
        self,
        played: Checked[ReplicaProbe],
        candidate: PolicyVersion,
        dtype: str | None,
        stable: PolicyVersion | None,
    ) -> str | None:
        """Why the candidate does not match its probe; None when it does. Raises `Unavailable` for a replica's fault."""
        wrong = {name: result for name, result in played.results.items() if not result.matches(dtype)}
        if not wrong:
            return None
        sentence = "; ".join(f"{name}: {result.sentence(dtype)}" for name, result in wrong.items())
        if len(wrong) < len(played.results) or not all(result.never_matches(dtype) for result in wrong.values()):
            self.doubts.update((candidate.name, name) for name in wrong)
            raise self.checks.inconclusive(candidate, f"{sentence}; but not always, or not on every replica: {MEND}")
        computed_in = await self._stable_matches(stable, candidate, sentence) if stable is not None else None
        if any(result.other_format(dtype) for result in wrong.values()) and computed_in != dtype:
            raise self.checks.inconclusive(candidate, sentence)
        return sentence

    async def _stable_matches(self, stable: PolicyVersion, candidate: PolicyVersion, sentence: str) -> str | None:
        """The number format that stable's probe shows on every replica; None where stable has no probe to show it.

        Raises `Unavailable` when a replica that fails on the candidate's probe fails on stable's, too.
        """
        try:
            manifest = await self.read_manifest(stable)
        except (NotFound, DigestMismatch, Rejected):
            return None
        if manifest.probe is not None and damage_of(manifest.probe) is not None:
            manifest = msgspec.structs.replace(manifest, probe=None)
        try:
            usual = await self.checks.on_each(stable, None, partial(self._play, manifest))
        except Rejected as error:
            reason = f"{sentence}; and {stable.name}, which serves the role, is refused: {error}"
            raise self.checks.inconclusive(candidate, reason) from error
        wrong = [
            f"{name}: {result.sentence(manifest.dtype)}"
            for name, result in usual.results.items()
            if not result.matches(manifest.dtype)
        ]
        if wrong:
            raise self.checks.inconclusive(
                candidate,
                f"{sentence}; and so it is with {stable.name}, which serves the role ({'; '.join(wrong)}): was the "
                "engine's base model or number format exchanged?",
            )
        return manifest.dtype if all(result.differences for result in usual.results.values()) else None

    async def _play(self, manifest: PolicyManifest, replica: Replica, model: str) -> ReplicaProbe:
        doubts = self.doubts[model, replica.name]
        return await _play(model, manifest, PLAYS * 2 ** min(doubts, MOST_DOUBTS), replica)


async def _play(model: str, manifest: PolicyManifest, times: int, replica: Replica) -> ReplicaProbe:
    """What a replica answers to the probe. Raises `Unavailable` where it does not report what settings say it does."""
    probe = manifest.probe
    prompt = probe.prompt_token_ids if probe else CONTROL_IDS[:1]
    output = probe.output_token_ids if probe else CONTROL_IDS[1:]
    ids = [*prompt, *output]
    plays: list[Sequence[ScoredToken]] = []
    for _ in range(times):
        scored = await replica.score(model, ids, CANDIDATES)
        if scored is None and plays:
            raise Unavailable(
                f"{replica.name} scores some prompts and not others (prompt_logprobs): do different servers answer at "
                "its address?"
            )
        if scored is None:
            await replica.candidates(model, CONTROL_IDS, 1.0, 1)  # so that it fetches the policy at least
            why = "its log-probabilities: the engine scores no prompts (prompt_logprobs)"
            return ReplicaProbe(not_checked=[why, "its log-probabilities at another temperature"])
        plays.append(scored[len(prompt) - 1 :])
    logprobs = [[token.logprob for token in scored] for scored in plays]
    _refuse_logits(logprobs, replica)
    problems = [_broken(logprob) for logprob in logprobs]
    sound = [
        [value for value in play if value is not None] for play, why in zip(logprobs, problems, strict=True) if not why
    ]
    differences = [difference_from(probe, play) for play in sound] if probe else []
    if len(sound) < len(plays):
        return ReplicaProbe(differences, broken=next(filter(None, problems)), sound=len(sound))
    mode, not_checked = await _mode(model, manifest.dtype, replica, prompt, output, plays[0])
    if probe is None:
        not_checked = [NO_PROBE, *not_checked]
    return ReplicaProbe(differences, mode, not_checked, sound=len(sound))


def _broken(logprobs: Sequence[float | None]) -> str | None:
    for place, value in enumerate(logprobs):
        if value is None or not math.isfinite(value):
            return f"log-probability of token {place} of the probe is not finite"
    return None


def _refuse_logits(plays: Sequence[Sequence[float | None]], replica: Replica) -> None:
    """No weights make a log-probability positive."""
    if any(value is not None and value > 1e-3 for logprobs in plays for value in logprobs):
        raise Unavailable(
            f"{replica.name}: values above 0 are no log-probabilities: start it with --logprobs-mode {PROCESSED}"
        )


async def _mode(
    model: str,
    dtype: str | None,
    replica: Replica,
    prompt: Sequence[int],
    output: Sequence[int],
    scored: Sequence[ScoredToken],
) -> tuple[str | None, Sequence[str]]:
    """The log-probabilities of drawn tokens, or what could not be checked about them."""
    subject = f"log-probabilities at temperature {TEMPERATURE:g}"
    pair = widest_pair([token.candidates for token in scored])
    if pair is None:
        return None, [f"{subject}: the engine names no candidates"]
    if not pair.distinguishable(dtype):
        return None, [f"{subject}: candidates are at most {pair.gap:.2g} nats apart, too few to tell"]
    try:
        drawn = await replica.candidates(model, [*prompt, *output[: pair.place]], TEMPERATURE, CANDIDATES)
    except Rejected as error:
        return None, [f"{subject}: {error}"]
    mode, configured = reported_mode(pair, drawn, dtype), replica.logprobs_mode
    if mode is None:
        return None, [f"{subject}: the engine does not name the same candidates again"]
    if configured is not None and mode != configured:
        seen = WORDS.get(mode, mode)
        raise Unavailable(
            f"{replica.name}: {seen}, where settings say {configured}: start it with --logprobs-mode {configured}, "
            "or correct logprobs_mode in RATCHET_ENGINES, or RATCHET_ENGINE_LOGPROBS_MODE"
        )
    return (mode, ()) if mode in (PROCESSED, RAW) else (None, [mode])


def _figures(played: Checked[ReplicaProbe], manifest: PolicyManifest) -> JsonObject:
    tolerance = tolerance_in(manifest.dtype)
    return {
        "compared": any(result.differences for result in played.results.values()),
        "dtype": manifest.dtype or "unknown",
        "allowed": {"mean": tolerance.mean, "worst": tolerance.worst},
        "replicas": {name: _figures_of(result) for name, result in played.results.items()},
        "away": list(played.away),
    }


def _figures_of(result: ReplicaProbe) -> JsonObject:
    worst = result.worst
    compared: Mapping[str, object] = (
        {"tokens": worst.tokens, "plays": len(result.differences), "mean": worst.mean, "worst": worst.worst}
        if worst is not None
        else {}
    )
    return {**compared, "logprobs_mode": result.mode or "unknown", "not_checked": list(result.not_checked)}


def _summary(played: Checked[ReplicaProbe], manifest: PolicyManifest) -> str:
    """What was compared, and what was not, in words."""
    worst = [result.worst for result in played.results.values() if result.worst is not None]
    compared = f"on {len(worst)} of {len(played.results) + len(played.away)} replicas"
    parts = [NO_PROBE if manifest.probe is None else "no log-probabilities were compared"]
    if worst:
        largest = max(worst, key=lambda difference: difference.worst)
        mean = max(difference.mean for difference in worst)
        parts = [
            f"its log-probabilities on the probe match {compared}: {largest.worst:.2g} nats apart at most and "
            f"{mean:.2g} in the mean, over {largest.tokens} tokens"
        ]
    for mode in (PROCESSED, RAW):
        names = [name for name, result in played.results.items() if result.mode == mode]
        if names:
            parts.append(WORDS[mode] if len(names) == len(played.results) else f"{', '.join(names)}: {WORDS[mode]}")
    for name, result in played.results.items():
        missing = [why for why in result.not_checked if why != NO_PROBE]
        if missing:
            parts.append(f"{name}: not checked: {', '.join(missing)}")
    if played.away:
        parts.append(f"not checked, for they are away: {', '.join(played.away)}")
    return "; ".join(parts)

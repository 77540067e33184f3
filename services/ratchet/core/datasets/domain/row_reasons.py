"""Why a snapshot has a row, in words: the conditions that every row meets, and what the choice saw in this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from ratchet.core.contract.snapshot import EXECUTIONS, LABELS, PAIRS, TRAJECTORIES, SnapshotManifest
from ratchet.core.contract.training import DatasetFilter
from ratchet.core.datasets.domain.pairs import HUMAN
from ratchet.core.datasets.domain.selection import most_generations
from ratchet.core.rules.algorithms import ALGORITHMS


def conditions(manifest: SnapshotManifest) -> list[str]:
    """What every row of a snapshot meets: the rules of its format, then the filter that the request asked for."""
    chosen = filter_of(manifest)
    own = {PAIRS: _of_pairs, EXECUTIONS: _of_executions}.get(manifest.format, _of_trajectories)
    return [*own(manifest, chosen), *_of_any(chosen)]


def why_taken(row: Mapping[str, Any], manifest: SnapshotManifest) -> str:
    """What the choice saw in a row. `row`: the columns that `SEEN` names (`Any`: each has its own type)."""
    return "; ".join(_WORDS[manifest.format](row, filter_of(manifest)))


def filter_of(manifest: SnapshotManifest) -> DatasetFilter:
    """The filter that a snapshot's rows were chosen by."""
    return msgspec.convert(manifest.filters, DatasetFilter)


def _of_trajectories(manifest: SnapshotManifest, chosen: DatasetFilter) -> Iterator[str]:
    algorithm = ALGORITHMS.get(manifest.algorithm)
    needs_calls = manifest.format == TRAJECTORIES and algorithm is not None and algorithm.needs_token_ids
    yield f"among the newest groups of tries, at most {manifest.sample_size} rows"
    if chosen.balance_domains:
        yield "each domain at most its equal share while others have more"
    yield "no evaluation, and one policy from the first call to the last"
    if manifest.format == LABELS:
        yield "most of its raters' thumbs agree"
    if needs_calls:
        yield "the reward has evidence, and a call has what this algorithm learns from"
    if needs_calls or manifest.format == LABELS:
        yield "this line of policies has not learned from it"
    generations = most_generations(chosen, needs_calls=needs_calls)
    if generations is not None:
        words = "1 generation" if generations == 1 else f"{generations} generations"
        yield f"answered by policies at most {words} away, or of unknown age"
    if limits := _limits(chosen.min_reward, chosen.max_reward):
        yield f"the reward is {limits}"
    if chosen.max_trajectory_length is not None:
        yield f"at most {chosen.max_trajectory_length} turns"
    if chosen.exclude_subordinate_profiles:
        yield f"not of the profiles {', '.join(chosen.exclude_subordinate_profiles)}"


def _of_pairs(manifest: SnapshotManifest, chosen: DatasetFilter) -> Iterator[str]:
    yield f"among the newest, at most {manifest.sample_size} pairs"
    yield "most who judged these two answers agree, each by the last opinion, and they count once"
    yield "this line of policies has not learned from it"
    if chosen.min_margin is not None:
        yield f"preferred by at least {chosen.min_margin:g}, or by a person"
    if chosen.min_human_share is not None:
        yield f"people's pairs are at least {chosen.min_human_share:.0%} of all"


def _of_executions(manifest: SnapshotManifest, _: DatasetFilter) -> Iterator[str]:
    yield f"among the newest, at most {manifest.sample_size} workflows, by any planner and with any end"


def _of_any(chosen: DatasetFilter) -> Iterator[str]:
    if chosen.sources is not None:
        yield f"its source is one of {', '.join(chosen.sources)}"
    if chosen.task_domains is not None:
        yield f"its domain is one of {', '.join(chosen.task_domains)}"
    if chosen.held_out:
        yield f"its task is not of the {chosen.held_out:.0%} that are held out"
    if chosen.excluded_raters:
        yield f"without the opinions of {', '.join(chosen.excluded_raters)}"
    if chosen.date_range is not None:
        ends = (("from", chosen.date_range.start), ("before", chosen.date_range.end))
        yield " ".join(f"{word} {at.isoformat()}" for word, at in ends if at is not None)


def _trajectory(row: Mapping[str, Any], chosen: DatasetFilter) -> Iterator[str]:
    reward, raw, baseline = row["reward"], row["raw_reward"], row["baseline"]
    limits = _limits(chosen.min_reward, chosen.max_reward)
    yield f"reward {raw:.3g}{f', {limits}' if limits else ''}"
    if reward != raw:
        yield f"it learns from {reward:.3g}, transformed"
    if baseline is not None:
        difference, side = f"{abs(reward - baseline):.2g}", "above" if reward > baseline else "below"
        if float(difference) == 0:
            yield f"the {baseline:.3g} that was expected of its task"
        else:
            yield f"{difference} {side} the {baseline:.3g} expected of its task"
    if row["policy_version"] is not None:
        yield f"version {row['policy_version']} answered"


def _pair(row: Mapping[str, Any], _: DatasetFilter) -> Iterator[str]:
    source, rater, margin = row["source"], row["rater"], row["confidence"]
    judge = rater or ("a person" if source == HUMAN else source)
    yield f"{judge} preferred it" if source == HUMAN or not rater else f"{judge} ({source}) preferred it"
    if margin is not None:
        yield f"confidence {margin:.3g}" if source == HUMAN else f"by {margin:.3g}"


def _label(row: Mapping[str, Any], _: DatasetFilter) -> Iterator[str]:
    yield f"thumbs {'up' if row['label'] else 'down'} by most raters"


def _execution(row: Mapping[str, Any], _: DatasetFilter) -> Iterator[str]:
    yield f"it {row['status']}" if row["status"] in ("succeeded", "failed") else f"it ended {row['status']}"
    yield f"version {row['policy_version']} planned"


def _limits(least: float | None, most: float | None) -> str:
    ends = (("at least", least), ("at most", most))
    return " and ".join(f"{word} {end:g}" for word, end in ends if end is not None)


SEEN: Mapping[str, tuple[str, ...]] = {
    TRAJECTORIES: ("reward", "raw_reward", "baseline", "policy_version"),
    PAIRS: ("source", "rater", "confidence"),
    LABELS: ("label",),
    EXECUTIONS: ("status", "policy_version"),
}
"""Format -> the columns that `why_taken` reads."""

_WORDS: Mapping[str, Callable[[Mapping[str, Any], DatasetFilter], Iterator[str]]] = {
    TRAJECTORIES: _trajectory,
    PAIRS: _pair,
    LABELS: _label,
    EXECUTIONS: _execution,
}

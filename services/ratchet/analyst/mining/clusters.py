"""Failures that are alike, and a rule for each kind of them, formed on half of the subjects.

Failing trajectories are described by what tools answered, the order of calls, and the words of the question (TF-IDF,
each of the three as long as the others, in at most `DIMENSIONS` dimensions). HDBSCAN and Ward's trees of several
sizes compete: that one counts whose clusters come again, by the adjusted Rand index, in `RESAMPLES` resamples.

A cluster is no claim yet: what is picked among failures fails. So the conjunction of triggers is learned that tells
its members from all other trajectories, successes too, and it is the rule that is tested on other subjects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from scipy import sparse
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.cluster import HDBSCAN
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.metrics import adjusted_rand_score
from sklearn.preprocessing import normalize

from ratchet.analyst.mining.associations import Table, outcome
from ratchet.analyst.mining.base import KNOWN_BEFORE, Codes, Episodes, Floats, Hypothesis, Mask
from ratchet.analyst.mining.measure import measured
from ratchet.core.contract.learning import Trigger

FINDING, POLICIES_DIFFER = "failure_cluster", "policies_differ"
MOST_FAILURES = 5000
FEWEST_FAILURES = 30
DIMENSIONS = 50
RESAMPLES, RESAMPLED, KEPT = 20, 1000, 0.8
"""Times, of at most so many failures, the share that each keeps."""
SMALLEST_SHARE, SMALLEST = 0.02, 8
"""Of a cluster among the failures; and its members."""
TREES = (3, 6, 12)
"""Clusters that Ward's tree is cut into."""
MOST_CLUSTERS = 12
ALIKE = ("tool_error", "tool_sequence", "term")
"""What failures are compared by."""
RULED_BY = (*sorted(KNOWN_BEFORE - {"hour", "version"}), "tool", "tool_sequence", "tool_error", "behavior")
CONSIDERED, WIDEST = 40, 10
"""Triggers that a rule is searched among, by their own F1; and pairs that a third one is tried for."""
GAIN = 0.02
"""Of F1, that a further trigger must bring."""
WEAKEST_F1 = 0.25
NEARLY = 0.8
"""A rule that is known before the outcome is taken if it has this share of the best one's F1."""
MOST_TERMS = 6

Labels = Codes
"""Index of the cluster for each failure; -1: of none."""


def hypotheses(before: Episodes, now: Episodes, seed: int) -> list[Hypothesis]:
    """One for each cluster that has a rule, and one for each policy that may differ within one."""
    failed = outcome(before, now, "failure")
    random = np.random.default_rng([seed, MOST_FAILURES])
    table = Table.of(before, now, RULED_BY)
    failed = failed[table.order]
    failures = np.flatnonzero(failed == 1)
    if len(failures) < FEWEST_FAILURES or not len(table.triggers):
        return []
    sampled = np.sort(random.permutation(failures)[:MOST_FAILURES]).astype(np.int32)
    labels = _clustered(_embedded(table, sampled, seed), random)
    others = np.flatnonzero(failed == 0)
    fair = random.random(len(others)) < len(sampled) / len(failures)
    rows = np.concatenate([sampled, others[fair]]).astype(np.int32)
    scene = _Scene(table.triggers, table.matrix.tocsr()[rows].tocsc(), len(sampled))
    rules: dict[frozenset[Trigger], Hypothesis] = {}
    for cluster in np.argsort(-np.bincount(labels + 1)[1:], kind="stable")[:MOST_CLUSTERS]:
        members = np.zeros(len(rows), dtype=np.bool_)
        members[: len(sampled)] = labels == cluster
        rule = scene.rule(members)
        if rule:
            claim = Hypothesis(FINDING, FINDING, "failure", rule, terms=scene.terms(members, rule))
            rules.setdefault(frozenset(rule), claim)
    policies = chain.from_iterable(_policies(before, now, claim.triggers) for claim in rules.values())
    return [*rules.values(), *policies]


def _embedded(table: Table, rows: Codes, seed: int) -> Floats:
    """Failures as points on a sphere (f, at most `DIMENSIONS`)."""
    matrix = table.matrix.tocsr()[rows].tocsc()
    blocks: list[Any] = []
    for attribute in ALIKE:
        columns = [index for index, trigger in enumerate(table.triggers) if trigger.attribute == attribute]
        if columns:
            blocks.append(TfidfTransformer().fit_transform(matrix[:, columns]))
    joined: Any = sparse.hstack(blocks or [matrix]).tocsr()
    dimensions = min(DIMENSIONS, min(joined.shape) - 1)
    if dimensions < 2:
        return joined.toarray()
    points: Any = normalize(TruncatedSVD(dimensions, random_state=seed).fit_transform(joined))
    return points


def _clustered(points: Floats, random: np.random.Generator) -> Labels:
    """The clusters of that way of clustering whose clusters are the most stable."""
    few = points[random.permutation(len(points))[:RESAMPLED]]
    whole = [way(few) for way in _WAYS]
    agreed = np.zeros(len(_WAYS))
    for _ in range(RESAMPLES):
        kept = random.random(len(few)) < KEPT
        agreed += [adjusted_rand_score(whole[i][kept], way(few[kept])) for i, way in enumerate(_WAYS)]
    single = [len(set(labels.tolist())) < 2 for labels in whole]
    labels = _WAYS[int(np.argmax(np.where(single, -1.0, agreed)))](points)
    sizes = np.bincount(labels + 1, minlength=2)[1:]
    large = sizes >= max(SMALLEST, SMALLEST_SHARE * len(points))
    return np.where((labels >= 0) & large[labels], labels, -1).astype(np.int32)


def _dense(points: Floats) -> Labels:
    smallest = max(SMALLEST, int(SMALLEST_SHARE * len(points)))
    if len(points) <= smallest:
        return np.full(len(points), -1, dtype=np.int32)
    dense: Any = HDBSCAN(min_cluster_size=smallest, algorithm="brute", copy=True)  # pyright: ignore[reportArgumentType] - its stub takes a text
    return dense.fit_predict(points).astype(np.int32)


def _tree(clusters: int, points: Floats) -> Labels:
    return (fcluster(linkage(points, "ward"), clusters, "maxclust") - 1).astype(np.int32)


_WAYS: Sequence[Callable[[Floats], Labels]] = (_dense, *(partial(_tree, clusters) for clusters in TREES))


@dataclass(frozen=True, slots=True)
class _Scene:
    """Among which trajectories rules are searched: n of them, the failures first, and v triggers."""

    triggers: tuple[Trigger, ...]
    matrix: Any
    """scipy.sparse.csc_array (n, v)."""
    failures: int

    def rule(self, members: Mask) -> tuple[Trigger, ...]:
        """Tells the members (n,) from the others; empty where nothing does, or it does not go with failing."""
        everything = np.arange(len(self.triggers), dtype=np.int32)
        early = everything[[trigger.attribute in KNOWN_BEFORE for trigger in self.triggers]]
        rules = [self._best(members, columns) for columns in (early, everything) if len(columns)]
        best = max((f1 for f1, _ in rules), default=0.0)
        if best < WEAKEST_F1:
            return ()
        _, chosen = next(rule for rule in rules if rule[0] >= NEARLY * best)
        held = np.ones(len(members), dtype=np.bool_)
        for column in chosen:
            held &= self._column(column)
        if held[: self.failures].mean() <= held[self.failures :].mean():
            return ()
        return tuple(self.triggers[column] for column in sorted(chosen))

    def terms(self, members: Mask, rule: Sequence[Trigger]) -> tuple[str, ...]:
        """What members have more often than the others, the most telling first."""
        inside, outside = (self.matrix[rows].mean(axis=0) for rows in (members, ~members))
        ruled = {trigger.value for trigger in rule}
        telling = np.argsort(outside - inside, kind="stable")[: 4 * MOST_TERMS]
        values = [self.triggers[i].value for i in telling if inside[i] > 2 * outside[i]]
        return tuple(value for value in dict.fromkeys(values) if value not in ruled)[:MOST_TERMS]

    def _best(self, members: Mask, columns: Codes) -> tuple[float, tuple[int, ...]]:
        """The conjunction of at most three of the triggers with the largest F1."""
        alone = self._f1(members, self.matrix[:, columns])
        columns = columns[np.argsort(-alone, kind="stable")[:CONSIDERED]]
        held = np.ascontiguousarray(self.matrix[:, columns].toarray().T > 0)
        conjunctions: list[tuple[int, ...]] = [(place,) for place in range(len(columns))]
        best, chosen = 0.0, tuple[int, ...]()
        for size in (1, 2, 3):
            scores = np.array([_f1(members, np.logical_and.reduce(held[list(places)])) for places in conjunctions])
            if not len(scores) or scores.max() < best + GAIN:
                break
            best, chosen = float(scores.max()), conjunctions[int(np.argmax(scores))]
            widest = [conjunctions[place] for place in np.argsort(-scores, kind="stable")[:WIDEST]]
            conjunctions = list(_wider(widest, len(columns))) if size < 3 else []
        return best, tuple(int(columns[place]) for place in chosen)

    def _f1(self, members: Mask, matrix: Any) -> Floats:
        """Of each column."""
        true = members.astype(np.float64) @ matrix
        return 2 * true / np.maximum(matrix.sum(axis=0) + members.sum(), 1)

    def _column(self, column: int) -> Mask:
        return self.matrix[:, [column]].toarray().ravel() > 0


def _f1(members: Mask, held: Mask) -> float:
    return 2 * float(np.count_nonzero(members & held)) / max(1, np.count_nonzero(members) + np.count_nonzero(held))


def _wider(conjunctions: Sequence[tuple[int, ...]], columns: int) -> Iterator[tuple[int, ...]]:
    """Each with one trigger more."""
    wider = (tuple(sorted({*places, place})) for places in conjunctions for place in range(columns))
    return (places for places in dict.fromkeys(wider) if len(places) > len(conjunctions[0]))


FEWEST_OF_POLICY = 10
"""Trajectories of a cluster and window that a policy must have, and the others as well."""


def _policies(before: Episodes, now: Episodes, rule: tuple[Trigger, ...]) -> Iterator[Hypothesis]:
    """For each policy that both windows know: it fails otherwise than the others at the tasks of the rule."""
    if not all(trigger.attribute in KNOWN_BEFORE for trigger in rule):
        return
    versions = [window.columns["version"].values for window in (before, now) if "version" in window.columns]
    for version in sorted(set(versions[0]) & set(versions[-1])) if len(versions) == 2 else ():
        own = Trigger(attribute="version", value=version)
        if all(_both(window, rule, own) for window in (before, now)):
            yield differing(rule, own)


def differing(rule: tuple[Trigger, ...], own: Trigger) -> Hypothesis:
    """A policy fails otherwise than the others at the tasks of a rule."""
    return Hypothesis("behavior", POLICIES_DIFFER, "failure", (*rule, own), value=partial(_within, rule))


def _both(window: Episodes, rule: Sequence[Trigger], own: Trigger) -> bool:
    held, answered = window.matching(rule), window.matching([own])
    return bool(min(np.count_nonzero(held & answered), np.count_nonzero(held & ~answered)) >= FEWEST_OF_POLICY)


def _within(rule: tuple[Trigger, ...], episodes: Episodes) -> Floats:
    """Failures (n,) of trajectories that match the rule."""
    return np.where(episodes.matching(rule), measured(episodes, "failure"), np.nan)

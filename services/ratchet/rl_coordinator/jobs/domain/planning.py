"""Which algorithm and which data fit what a role has, and why not the others.

The table of `rules/defaults.toml` decides: its order, the least data of each row, and what a row rests on. A person
may ask for anything else. Where the least amounts come from: imitating 762 solved tickets of 1,213 gave .98 greedy
where policy gradients on the same data gave .85 to .90 (100 successes and a share of .3 are judgement below that); 194
held-out pairs show a win rate of .60 with a power of .8, and a third held out leaves 500 pairs; groups of equal reward
have no gradient, and the smallest cycle that learnt had 40 tasks (20 groups that differ); 200 single tries are
judgement; thumbs are compared by kind within a batch. Below an effective sample size of .3 few rows carry the update.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from ratchet.core.contract.training import DatasetFilter
from ratchet.core.datasets.domain.reward_groups import RewardTally
from ratchet.core.datasets.domain.selection import Candidate, TrajectoryRules, reason_against
from ratchet.core.rules.defaults import DEFAULTS, in_words

AUTO = "auto"
"""In the place of an algorithm: the planner's proposal."""
SUCCESS = 0.5
"""A reward from here on is a success, which is worth imitating."""
LEAST_ESS = 0.3
"""Effective share of the samples below which a policy gradient refuses data at its start."""
OLD, MOST_OLD = 4, 0.5
"""Generations of policies from which on a trajectory counts as old, and the share of old ones above which most weights
are cut or rejected. Beyond twice as many generations a policy gradient takes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tries:
    """The rewarded trajectories of a role."""

    rewarded: int
    """Those for which something was known; pinned and mixed ones left out."""
    successes: int
    new_successes: int
    """Those from which the stable policy's lineage has not learnt."""
    trainable: int
    """Those of them that a policy gradient may use and the stable policy's lineage has not used."""
    groups: int
    """Tasks with several tries among these."""
    mixed_groups: int
    """Those whose rewards differ."""
    singletons: int
    """Tasks with one try."""
    old: int = 0
    """Trainable ones that a policy of at least `OLD` generations away answered."""

    @property
    def old_share(self) -> float:
        return self.old / self.trainable if self.trainable else 0.0

    @property
    def success_share(self) -> float:
        return self.successes / self.rewarded if self.rewarded else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a role has to learn from."""

    tries: Tries
    pairs: int
    """Pairs of answers that the lineage has not learnt from: repeated, outvoted and contradicted opinions left out."""
    thumbs_up: int
    """Trajectories that most of their raters liked, and that the lineage has not learnt from as such."""
    thumbs_down: int
    ess: float | None
    """Of the role's last policy gradient, as long as most trainable trajectories are older than it."""
    has_imitated: bool
    """The stable policy or an ancestor learnt by sft."""
    held_out_tasks: int = 0
    """Tasks by which the gate compares candidates with stable."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One algorithm: whether the data carries it, and why."""

    algorithm: str
    fits: bool
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A proposal: the algorithm, what it takes, and why not the others."""

    chosen: Verdict | None
    """None: nothing can be learnt yet."""
    filter: DatasetFilter | None
    rejected: Sequence[Verdict]

    @property
    def explanation(self) -> str:
        """All of it in words."""
        proposed = f"{self.chosen.algorithm}: {self.chosen.why}" if self.chosen else "nothing can be learnt yet"
        return "; ".join(
            [f"planned {proposed}", *(f"not {verdict.algorithm}: {verdict.why}" for verdict in self.rejected)]
        )


def plan(shape: Shape, offered: Collection[str], impossible: Mapping[str, str] | None = None) -> Plan:
    """The proposal for data of this shape, of the algorithms that are offered.

    `impossible`: by algorithm, why a job would be refused although the shape fits.
    """
    # Never proposed: what a role is trained for is the policy that serves it.
    scorer = f"{shape.pairs} preference pairs; it scores answers, and no role is served by it"
    ranked = [_prompt(shape), *(JUDGES[name](shape) for name in DEFAULTS if name in JUDGES)]
    ranked.append(Verdict("reward_model", False, scorer))
    chosen: Verdict | None = None
    rejected: list[Verdict] = []
    for verdict in ranked:
        name = verdict.algorithm
        if name not in offered:
            continue
        refused = (impossible or {}).get(name)
        if verdict.fits and not refused and chosen is None:
            chosen = _with_evidence(verdict)
        elif verdict.fits:
            why = f"but {refused}" if refused else f"{chosen.algorithm} comes first" if chosen else ""
            rejected.append(Verdict(name, False, f"{verdict.why}; {why}"))
        else:
            rejected.append(verdict)
    chosen_filter = DatasetFilter(min_reward=SUCCESS) if chosen and chosen.algorithm == "sft" else None
    return Plan(chosen, chosen_filter, rejected)


def with_successes(chosen: DatasetFilter | None, proposed: DatasetFilter | None) -> DatasetFilter | None:
    """The filter that a request names, and of what it leaves open the proposal's."""
    if chosen is None or proposed is None or chosen.min_reward is not None:
        return chosen or proposed
    return replace(chosen, min_reward=proposed.min_reward)


def tries_of(candidates: Sequence[Candidate], rules: TrajectoryRules) -> Tries:
    """What is stored, counted. `rules`: those of a policy gradient, by which its snapshot is chosen too."""
    any_reward = TrajectoryRules(rules.filter, needs_calls=False, consumed=frozenset())
    known = [
        candidate
        for candidate in candidates
        if candidate.confidence > 0 and reason_against(candidate, any_reward) is None
    ]
    trainable = [candidate for candidate in known if reason_against(candidate, rules) is None]
    tally = RewardTally()
    tally.update((candidate.task_key, candidate.reward) for candidate in trainable)
    tasks = tally.counts()
    return Tries(
        rewarded=len(known),
        successes=sum(candidate.reward >= SUCCESS for candidate in known),
        new_successes=sum(
            candidate.reward >= SUCCESS and candidate.trajectory_id not in rules.consumed for candidate in known
        ),
        trainable=len(trainable),
        groups=tasks.groups,
        mixed_groups=tasks.mixed_groups,
        singletons=tasks.singletons,
        old=sum(
            max((rules.generations.get(version, 0) for version in candidate.versions), default=0) >= OLD
            for candidate in trainable
        ),
    )


def thumbs_of(
    candidates: Sequence[Candidate], given: Mapping[str, bool | None], rules: TrajectoryRules
) -> tuple[int, int]:
    """Liked and disliked trajectories. `given`: by trajectory, the label of most raters; `rules.consumed`: what was
    learnt from as such."""
    usable = [
        given.get(candidate.trajectory_id)
        for candidate in candidates
        if candidate.trajectory_id not in rules.consumed and reason_against(candidate, rules) is None
    ]
    return usable.count(True), usable.count(False)


def lasting_ess(ess: float | None, learnt_at: datetime, candidates: Sequence[Candidate]) -> float | None:
    """The effective sample size of a training, until most of what there is to learn from is newer than it."""
    newer = sum(candidate.ended_at > learnt_at for candidate in candidates)
    return None if 2 * newer > len(candidates) else ess


def _prompt(shape: Shape) -> Verdict:
    tasks = f"the gate has {shape.held_out_tasks} held-out tasks"
    if not shape.held_out_tasks:
        return Verdict(
            "gepa", False, f"{tasks}: nothing but traffic could tell a better prompt (RATCHET_CANARY_TASK_FILES)"
        )
    free = "a prompt costs some calls and no GPU, and meets the same gates as weights: try it before you train"
    return Verdict("gepa", True, f"{tasks}: {free}")


def _imitate(shape: Shape) -> Verdict:
    tries = shape.tries
    share = (
        f"{tries.successes} of {tries.rewarded} trajectories with a known outcome succeeded ({tries.success_share:.0%})"
    )
    least = DEFAULTS["sft"].least
    enough, least_share = least["successes"], least["success_share"]
    if tries.successes < enough:
        return Verdict("sft", False, f"{share}; imitation needs {enough:g} successes")
    if tries.success_share < least_share:
        return Verdict("sft", False, f"{share}; below {least_share:.0%} those that succeed are the easy ones")
    if shape.has_imitated and tries.new_successes < enough:
        return Verdict(
            "sft", False, f"{share}, and {tries.new_successes} of these are new; it needs {enough:g} new ones"
        )
    return Verdict("sft", True, f"{share}: imitating those alone is the baseline that RL has to beat")


def _pairs(shape: Shape) -> Verdict:
    counted = f"{shape.pairs} preference pairs"
    enough = DEFAULTS["dpo"].least["pairs"]
    if shape.pairs < enough:
        return Verdict("dpo", False, f"{counted}; below {enough:g} it shows little")
    return Verdict("dpo", True, f"{counted} are enough to tell a win rate from chance")


def _groups(shape: Shape) -> Verdict:
    mixed = f"{shape.tries.mixed_groups} of {shape.tries.groups} groups of trainable tries differ in reward"
    enough = DEFAULTS["rloo"].least["mixed_groups"]
    if shape.tries.mixed_groups < enough:
        return Verdict("rloo", False, f"{mixed}; it needs {enough:g}, for equal ones have no gradient")
    return _unless_old("rloo", shape, f"{mixed}: each try is compared with the others at its task")


def _singletons(shape: Shape) -> Verdict:
    counted = f"{shape.tries.singletons} tasks with a single trainable try"
    enough = DEFAULTS["reinforce"].least["singletons"]
    if shape.tries.singletons < enough:
        return Verdict("reinforce", False, f"{counted}; it needs {enough:g}")
    return _unless_old("reinforce", shape, f"{counted}, each compared with the baseline of its task")


def _thumbs(shape: Shape) -> Verdict:
    up, down = shape.thumbs_up, shape.thumbs_down
    counted = f"{up} thumbs up and {down} down"
    least = DEFAULTS["kto"].least
    enough, of_each = least["thumbs"], least["of_each_kind"]
    if up + down < enough or min(up, down) < of_each:
        return Verdict("kto", False, f"{counted}; it needs {enough:g}, and {of_each:g} of each kind")
    return Verdict("kto", True, counted)


JUDGES: Mapping[str, Callable[[Shape], Verdict]] = {
    "sft": _imitate,
    "dpo": _pairs,
    "rloo": _groups,
    "reinforce": _singletons,
    "kto": _thumbs,
}
"""By algorithm: whether the data carries it."""


def _with_evidence(verdict: Verdict) -> Verdict:
    """With what its row of the table is, and rests on."""
    row = DEFAULTS.get(verdict.algorithm)
    if row is None:
        return verdict
    recipe = in_words(row.epochs, row.batch_size, row.learning_rate.adapter)
    why = f"{verdict.why}; {row.evidence}; {recipe} where the job names nothing"
    return Verdict(verdict.algorithm, True, why)


def _unless_old(algorithm: str, shape: Shape, why: str) -> Verdict:
    """Of data of other policies, or after a training whose weights collapsed, few rows teach a policy gradient."""
    if shape.tries.old_share > MOST_OLD:
        old = f"{shape.tries.old_share:.0%} of its data are of policies {OLD} or more generations away"
        return Verdict(algorithm, False, f"{old}: collect newer data")
    if shape.ess is not None and shape.ess < LEAST_ESS:
        low = f"the effective sample size of the last training was {shape.ess:.2f}, below {LEAST_ESS:g}"
        return Verdict(algorithm, False, f"{low}: collect newer data")
    return Verdict(algorithm, True, why)

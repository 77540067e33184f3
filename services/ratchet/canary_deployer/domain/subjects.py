"""Subjects: whose trajectories belong together, and the one factor that they have in a rollout's tests.

The subject of a trajectory is the widest name that its first call gave: the user, else the session. A trajectory
without a name, or of a subject that makes more than `LARGEST_SHARE` of a role's starts (`user: "default"`), is its own
subject.

**Why.** A factor per trajectory (`e_processes.py`) needs D <= d given everything before, at every trajectory. One user
with 200 tasks of a kind that the canary does worse breaks that, though other users' tasks are done better: policies
that are equal on average were rolled back in up to 96 % of simulated rollouts, worse ones promoted in up to 75 %.

**The unit.** Arms stay drawn by trajectory. A subject's unit is opened by its first start in the rollout. For a number
k fixed beforehand, its first min(n, k) trajectories count: those that start within one horizon, under the weight of the
first. With the centre m and the stake lambda of the opening,

    G = 1/k sum over these of (Z_j - d),     rollback's factor 1 + lambda G, promotion's 1 - lambda G

Its trajectories after that are served and count in no unit: a subject has one unit in a rollout, however often it
comes back.

**What is assumed**, beside (1) and (3) of `e_processes.py`. (2') No subject's trajectories affect another subject's.
Within one subject earlier arms may affect later trajectories: what is compared is the direct effect, damage that is
carried over is not seen. (4) Given everything about the subjects opened before, the expectation of the sum of (delta_j
- d) over a new subject's first min(n, k) trajectories is at most 0 (rollback) or at least 0 (promotion), where delta_j
is the harm that trajectory j takes on the canary less that on stable. Independent draws from one population of subjects
have that property, however different subjects are, when the canary is not worse (worse) than the margin on their
average.

**The martingale.** Whether there is a j-th trajectory, and its weight, depend on what is past when it starts, and its
arm on nothing: E[Z_j | past] = delta_j, so the sum of Z_j - delta_j over j <= min(n, k) has mean 0 at whatever j it
stops, and E[G | subjects before] <= 0 by (4). k bounds the sum, so G has the bounds of a single Z - d, and every stake
of single trajectories keeps the factor positive. Products over subjects in the order of their opening are
supermartingales; Ville's inequality covers all prefixes (Howard, Ramdas, McAuliffe & Sekhon 2021; betting on bounded
means: Waudby-Smith & Ramdas 2024). Within one subject the product is none: its drift is that subject's own. Hence the
bounds for what is open: a trajectory that is pending, and each that may still start, counts with the value worst for
the claim, so that a prefix never exceeds what it will be.

**k = 1 and k = 20.** The first trajectory alone is known soonest; the mean of 20 varies less where subjects come often.
Rollback averages both with fixed shares within each prefix, which is a supermartingale again. Promotion takes either
with its share of the error (a union bound). The share of k = 20 is fixed when the rollout starts: `MEAN_SHARE` where
subjects came back in the role's latest starts, else 0. Where every trajectory is its own subject, k = 1 alone is
today's test by trajectory, with its thresholds and its speed.

**What is not covered.** Subjects that belong together above the name (a firm's users; an agent that gives each task a
session of its own); effects that drift over subjects in one direction; ids chosen to match the draw. Who leaves after a
failure weighs less in k = 20: a role where that happens takes k = 1 alone (`Rules.first_alone`). Few subjects show
nothing of others: one subject for ever is neither rolled back nor promoted, only suspended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from ratchet.bus.message import Value

if TYPE_CHECKING:
    from ratchet.canary_deployer.domain.trajectories import Terms, Trajectory

FIRST = 20
"""Trajectories of a subject that count at most."""
MEAN_SHARE = 0.5
"""Share of the error that k = 20 gets where subjects come back; k = 1 has the rest."""
FEWEST_RETURNS = 0.1
"""Share of starts whose subject had started before, from which on subjects come back."""
RECENT_STARTS = 1000
"""The latest starts of a role, from which `SubjectsBefore` follows."""
LARGEST_SHARE, FEWEST_OF_MANY = 0.5, 20
"""A subject with more than this share of the latest starts, and so many of them, stands for many (`user: "default"`):
each of its trajectories is its own subject. A smaller share would split real users: with .05, policies that were equal
on average over a team of ten users, +-.3, were rolled back in 21 of 40 simulated rollouts; with whole users in none.
"""
FEWEST_SUBJECTS = 10
"""On fewer no canary is promoted by itself, whatever its e-values: a few that do well say nothing of others."""
UNCOUNTED = -1
"""Place of a trajectory that counts in no unit."""

FILTER_BITS = 1 << 20
FILTER_HASHES = 5
"""Of 100,000 forgotten subjects .8 % of new ones are taken for one of them, of 200,000 9 %."""


class SubjectsBefore(Value, frozen=True, kw_only=True, omit_defaults=True):
    """What a role's latest starts say about its subjects, frozen when a rollout starts."""

    starts: int = 0
    subjects: int = 0
    """Distinct ones; a start without a name is one."""
    split: tuple[str, ...] = ()
    """The one that stands for many, if there is one."""
    mean_share: float = 0.0
    """Share of the error that k = 20 gets."""

    @property
    def each(self) -> float:
        """Subjects for each start."""
        return self.subjects / self.starts if self.starts else 1.0


def subjects_before(starts: Sequence[str | None]) -> SubjectsBefore:
    """From the subjects of the latest starts; None stands for a trajectory that is its own."""
    counts = Counter(subject for subject in starts if subject is not None)
    many = max(LARGEST_SHARE * len(starts), FEWEST_OF_MANY - 1)
    split = tuple(name for name, count in counts.items() if count > many)
    unnamed = len(starts) - counts.total() + sum(counts.pop(name) for name in split)
    subjects = unnamed + len(counts)
    returns = 1 - subjects / len(starts) if starts else 0.0
    return SubjectsBefore(
        starts=len(starts),
        subjects=subjects,
        split=split,
        mean_share=MEAN_SHARE if returns >= FEWEST_RETURNS else 0.0,
    )


@dataclass(slots=True)
class Unit:
    """One named subject of a rollout."""

    chunk: int
    """Number of the chunk in which its first trajectory is."""
    opener: Trajectory
    members: list[tuple[Trajectory, Terms]] = field(default_factory=list["tuple[Trajectory, Terms]"])
    """What counts, with the terms of each; the opener first."""
    open: bool = True
    """Whether more trajectories may count."""

    def takes(self, at: float, weight: float, horizon_s: float) -> bool:
        """Whether a trajectory that starts now counts; one that does not ends the unit."""
        in_time = at <= self.opener.since + horizon_s
        self.open = self.open and in_time and weight == self.opener.weight and len(self.members) < FIRST
        return self.open

    def add(self, trajectory: Trajectory, terms: Terms) -> None:
        """Count a trajectory."""
        self.members.append((trajectory, terms))
        self.open = self.open and len(self.members) < FIRST

    @property
    def coming(self) -> int:
        """How many trajectories may still be counted."""
        return FIRST - len(self.members) if self.open else 0

    @property
    def complete(self) -> bool:
        """Whether no value of it will change any more."""
        return not self.open and all(trajectory.done for trajectory, _ in self.members)


class SubjectFilter(msgspec.Struct, frozen=True, array_like=True):
    """Subjects whose trajectories are forgotten, as a Bloom filter: none of them opens a second unit.

    A new subject that is taken for one of them opens none either, which costs evidence and no validity: that depends on
    its name alone.
    """

    bits: bytes = b""

    def __contains__(self, subject: str) -> bool:
        return bool(self.bits) and all(self.bits[place >> 3] >> (place & 7) & 1 for place in _places(subject))

    def with_subjects(self, subjects: Sequence[str]) -> SubjectFilter:
        """The filter with these subjects too."""
        if not subjects:
            return self
        bits = bytearray(self.bits or bytes(FILTER_BITS // 8))
        for subject in subjects:
            for place in _places(subject):
                bits[place >> 3] |= 1 << (place & 7)
        return SubjectFilter(bytes(bits))


def _places(subject: str) -> list[int]:
    """Bits of a subject: its 64 bits are a hash already (Kirsch & Mitzenmacher 2006)."""
    low, high = int(subject[:8], 16), int(subject[8:], 16) | 1
    return [(low + number * high) % FILTER_BITS for number in range(FILTER_HASHES)]

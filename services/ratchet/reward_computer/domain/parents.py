"""Whose reward a trajectory shares: that of the trajectory which it names as its parent, where that is clear."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

DEPTH = 8
"""Most trajectories above one that shares a reward."""


@dataclass(frozen=True, slots=True)
class Link:
    """A trajectory, and the id of its parent."""

    role: str
    trajectory_id: str
    parent_id: str
    """Empty where it names none."""
    user_ref: str | None


@dataclass(frozen=True)
class Family:
    """Trajectories, with those above them as far as they are known."""

    _parents: defaultdict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    """By id and role: the parent's id. The same id in two roles is two trajectories."""

    def add(self, links: Iterable[Link]) -> set[str]:
        """Returns the parents that are not known yet."""
        links = list(links)
        for link in links:
            self._parents[link.trajectory_id][link.role] = link.parent_id
        return {link.parent_id for link in links} - self._parents.keys() - {""}

    def parent_of(self, link: Link) -> tuple[str, str] | None:
        """Role and id of the trajectory whose reward it shares.

        None where the parent is unknown, its id stands for trajectories of several other roles, a trajectory is above
        itself, or more than `DEPTH` are above this one: so sharing from parent to child always ends.
        """
        parent = above = self._named(link.role, link.parent_id)
        seen = {link.trajectory_id}
        while above is not None:
            role, trajectory_id = above
            if trajectory_id in seen or len(seen) > DEPTH:
                return None
            seen.add(trajectory_id)
            above = self._named(role, self._parents[trajectory_id][role])
        return parent

    def _named(self, role: str, trajectory_id: str) -> tuple[str, str] | None:
        """The trajectory that one of a role means by an id: of its own role, else the only one."""
        roles = self._parents.get(trajectory_id, {})
        if role in roles:
            return role, trajectory_id
        return (next(iter(roles)), trajectory_id) if len(roles) == 1 else None

"""Two answers to the same question, for a person to choose between, in an order that says nothing. Pure.

The order follows from a hash of rater and pair: it is the same whenever a rater sees the pair, differs from rater to
rater, and puts each side first half of the time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

import msgspec

from ratchet.bus.message import JsonObject, named_id
from ratchet.core.contract import Preference
from ratchet.core.errors import BadRequest
from ratchet.core.preferences.derivation import common_prompt
from ratchet.core.preferences.rules.base import Try

PER_TASK = 3
"""Pairs of one task that are offered: no task outweighs the others."""


class PairKey(msgspec.Struct, frozen=True, array_like=True):
    """Which two trajectories of which role; `one` sorts before `other`."""

    role: str
    one: str
    other: str

    @property
    def pair_id(self) -> str:
        """The key as an opaque text."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two readable tries of one task whose answers differ."""

    key: PairKey
    one: Try
    other: Try
    start: int
    """How many first messages are the question."""

    @property
    def digest(self) -> str:
        """Of the texts, the same for every rater."""
        texts = msgspec.json.encode([self.one.messages, self.other.messages], order="deterministic")
        return hashlib.sha256(texts).hexdigest()

    def sides(self, rater: str) -> tuple[Try, Try]:
        """Left and right, as this rater sees them."""
        return (self.other, self.one) if is_swapped(rater, self.key) else (self.one, self.other)


def key_of(pair_id: str) -> PairKey:
    """The key of a pair's id. Raises `BadRequest`."""
    try:
        key = msgspec.json.decode(base64.urlsafe_b64decode(pair_id + "=" * (-len(pair_id) % 4)), type=PairKey)
    except (binascii.Error, ValueError, msgspec.DecodeError) as error:
        raise BadRequest("`pair_id` is not the id of a pair that was shown", param="pair_id") from error
    if key.one >= key.other:
        raise BadRequest("`pair_id` is not the id of a pair that was shown", param="pair_id")
    return key


def is_swapped(rater: str, key: PairKey) -> bool:
    """Whether this rater sees the second one on the left."""
    seed = msgspec.json.encode([rater, key.role, key.one, key.other])
    return hashlib.sha256(seed).digest()[0] % 2 == 1


def keys_of(role: str, tasks: Iterable[Sequence[str]]) -> list[PairKey]:
    """The pairs of each task's trajectories, the tasks' first pairs before their second ones."""
    every = [[PairKey(role, *sorted(two)) for two in islice(combinations(ids, 2), PER_TASK)] for ids in tasks]
    return [pairs[n] for n in range(PER_TASK) for pairs in every if n < len(pairs)]


def pair_of(key: PairKey, tries: Mapping[str, Try]) -> Pair | None:
    """The pair, if both can be read, ask the same and answer differently."""
    one, other = tries.get(key.one), tries.get(key.other)
    if one is None or other is None or one.task_key != other.task_key:
        return None
    start = common_prompt(one.messages, other.messages)
    rest = one.messages[start:], other.messages[start:]
    return Pair(key, one, other, start) if start and all(rest) and rest[0] != rest[1] else None


def preference_of(pair: Pair, rater: str, choice: str, confidence: float | None, comment: str | None) -> Preference:
    """A rater's choice, `left` or `right`. The same choice has the same id, whenever it is made."""
    left, right = pair.sides(rater)
    chosen, rejected = (left, right) if choice == "left" else (right, left)
    labels: JsonObject | None = {"comment": comment} if comment else None
    return Preference(
        preference_id=named_id("judgement", rater, pair.key.role, chosen.trajectory_id, rejected.trajectory_id),
        role=pair.key.role,
        prompt=pair.one.messages[: pair.start],
        chosen=chosen.messages[pair.start :],
        rejected=rejected.messages[pair.start :],
        source="human",
        rater=rater,
        confidence=confidence,
        domain=chosen.domain,
        labels=labels,
        tools=chosen.tools or rejected.tools or None,
        chosen_trajectory_id=chosen.trajectory_id,
        rejected_trajectory_id=rejected.trajectory_id,
        group_key=pair.one.task_key,
    )

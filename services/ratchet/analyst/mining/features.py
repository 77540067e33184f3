"""Episodes of trajectories: one after the other, of which only numbers and short names are kept.

| kept | bound |
|---|---|
| values of an attribute | the `MOST_VALUES` most frequent; counted among `TRACKED`, of which the rarest are forgotten |
| values of an episode | `texts.MOST_TERMS` of each attribute |
| a name | `texts.LONGEST_NAME` characters, redacted, on one line |

So 100,000 episodes with 100,000 values each stay within the memory of 64 values each.
"""

from __future__ import annotations

import heapq
import math
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import cast

import numpy as np
import numpy.typing as npt
from scipy import sparse

from ratchet.analyst.mining.base import MOST_VALUES, Codes, Column, Episodes, Floats, Members
from ratchet.analyst.mining.calls import members_of
from ratchet.analyst.mining.texts import MOST_TERMS, language_of, name_of, terms_of
from ratchet.bus.message import JsonObject
from ratchet.core.contract import Trajectory
from ratchet.core.contract.learning import Trigger
from ratchet.core.rules.chat import text_of
from ratchet.core.rules.effort import effort_of
from ratchet.core.rules.task_kind import domain_of

TRACKED = 20_000
"""Values of an attribute that are counted at a time: one that is more frequent than 1 in so many is not forgotten."""
LEAST_SUBJECTS = 5
"""A value of fewer shows nothing, and may name a person."""
MOST_COMPONENTS = 32
LARGEST = 1e12
"""Numbers beyond it are mistakes: squares of smaller ones are finite."""
COLUMNS = ("task_type", "domain", "language", "model", "version", "agent", "hour", "length")
MEMBERS = ("term", "document", "offered", "tool", "tool_sequence", "tool_error", "behavior")
MEASURES = ("failure", "reward", "cost_usd", "latency_ms", "tokens", "calls", "feedback", "answer_chars")
_LENGTHS = (30, 100, 300, 1000, 3000)
_VARYING = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|\w*\d[\w.]*")


Subjects = npt.NDArray[np.uint64]


class EpisodeBuilder:
    """Makes the episodes of one role and window. `keep`: values that are kept however rare they are, such as those of
    a pattern that is measured again."""

    def __init__(self, keep: Iterable[Trigger] = ()) -> None:
        self._ids: list[str] = []
        self._subjects, self._ended = array("Q"), array("d")
        self._measures = {name: array("d") for name in MEASURES}
        self._components: dict[str, array[float]] = {}
        kept = list(keep)
        self._values = {
            name: _Tally([trigger.value for trigger in kept if trigger.attribute == name])
            for name in (*COLUMNS, *MEMBERS)
        }

    def add(
        self,
        trajectory: Trajectory,
        *,
        reward: float | None,
        components: Mapping[str, float],
        feedback: bool,
        documents: Sequence[str] = (),
    ) -> None:
        """One episode more. `components`: of its reward, by name; `documents`: names of those that were retrieved."""
        row = len(self._ids)
        self._ids.append(trajectory.trajectory_id)
        self._subjects.append(_subject(trajectory))
        self._ended.append(_seconds(trajectory.end_timestamp))
        for name, value in _measures(trajectory).items():
            self._measures[name].append(_number(value))
        self._measures["reward"].append(_number(reward))
        self._measures["feedback"].append(float(feedback))
        self._add_components(row, components)
        asked = _question(trajectory)
        for name, value in _columns(trajectory, asked).items():
            self._values[name].add(row, [name_of(value)] if value else [])
        offered = _offered(trajectory)
        self._values["term"].add(row, terms_of(asked))
        self._values["document"].add(row, map(name_of, documents[:MOST_TERMS]))
        self._values["offered"].add(row, map(name_of, offered))
        for name, values in members_of(trajectory.turns, offered=bool(offered)).items():
            self._values[name].add(row, values)

    def build(self) -> Episodes:
        """All that were added, in the order of their end."""
        ended = np.frombuffer(self._ended, dtype=np.float64) if self._ended else np.zeros(0)
        order = np.argsort(ended, kind="stable").astype(np.int32)
        size = len(order)
        subjects = np.array(self._subjects, dtype=np.uint64)
        components = {name: _filled(values, size)[order] for name, values in sorted(self._components.items())}
        return Episodes(
            ids=tuple(self._ids[index] for index in order),
            subject=subjects[order],
            ended_at=ended[order],
            measures={name: np.array(values, dtype=np.float64)[order] for name, values in self._measures.items()},
            columns={name: self._values[name].column(order, subjects) for name in COLUMNS},
            members={name: self._values[name].members(order, subjects) for name in MEMBERS}
            | {"component": _having(components)},
            components=components,
        )

    def _add_components(self, row: int, components: Mapping[str, float]) -> None:
        for name, value in components.items():
            shown = name_of(name)
            if shown not in self._components:
                if not shown or len(self._components) >= MOST_COMPONENTS:
                    continue
                self._components[shown] = array("d")
            scores = self._components[shown]
            scores.extend([math.nan] * (row - len(scores)))
            if len(scores) == row:
                scores.append(_number(value))


class _Tally:
    """Which episodes have which values of an attribute. Values are kept by their hash, and the frequent ones by name:
    what is forgotten and comes again is counted from then on, but no episode loses it."""

    def __init__(self, keep: Sequence[str] = ()) -> None:
        self._keep = frozenset(keep)
        self._counts: dict[str, int] = {}
        self._rows, self._hashes = array("i"), array("q")

    def add(self, row: int, values: Iterable[str]) -> None:
        for value in list(dict.fromkeys(values))[:MOST_TERMS]:
            if not value:
                continue
            self._counts[value] = self._counts.get(value, 0) + 1
            self._rows.append(row)
            self._hashes.append(hash(value))
        if len(self._counts) > TRACKED:
            self._counts = dict(heapq.nlargest(TRACKED // 2, self._counts.items(), key=lambda entry: entry[1]))

    def column(self, order: Codes, subjects: Subjects) -> Column:
        """`order`: places of the episodes, (n,); `subjects`: of the episodes as they came, (n,)."""
        values, rows, indices = self._frequent(order, subjects)
        codes = np.full(len(order), -1, dtype=np.int32)
        codes[rows] = indices
        return Column(codes=codes, values=values)

    def members(self, order: Codes, subjects: Subjects) -> Members:
        values, rows, indices = self._frequent(order, subjects)
        ones = np.ones(len(rows), dtype=np.bool_)
        matrix = sparse.csc_array((ones, (rows, indices)), shape=(len(order), len(values)))
        matrix.sort_indices()
        return Members(matrix=matrix, values=values)

    def _frequent(self, order: Codes, subjects: Subjects) -> tuple[tuple[str, ...], Codes, Codes]:
        """The most frequent values, the most frequent first; each occurrence's new row and value's index."""
        ranked = sorted(self._counts.items(), key=lambda entry: (-entry[1], entry[0]))
        often = [value for value, count in ranked if count >= LEAST_SUBJECTS and value not in self._keep]
        rows, indices = self._having(often)
        pairs = subjects[rows] ^ (indices.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        distinct = indices[np.unique(pairs, return_index=True)[1]]
        enough = np.bincount(distinct, minlength=len(often)) >= LEAST_SUBJECTS
        room = max(0, MOST_VALUES - len(self._keep))
        values = (*sorted(self._keep), *[value for value, kept in zip(often, enough, strict=True) if kept][:room])
        rows, indices = self._having(values)
        new_rows = np.empty(len(order), dtype=np.int32)
        new_rows[order] = np.arange(len(order), dtype=np.int32)
        return values, new_rows[rows], indices

    def _having(self, values: Sequence[str]) -> tuple[Codes, Codes]:
        """Each occurrence of one of the values: its row, and the index of the value."""
        seen, rows = np.array(self._hashes, dtype=np.int64), np.array(self._rows, dtype=np.int32)
        if not values or not len(seen):
            nothing = np.zeros(0, dtype=np.int32)
            return nothing, nothing
        hashes = np.array([hash(value) for value in values], dtype=np.int64)
        by_hash = np.argsort(hashes)
        places = np.searchsorted(hashes[by_hash], seen).clip(max=len(values) - 1)
        indices = by_hash[places].astype(np.int32)
        held = hashes[indices] == seen
        return rows[held], indices[held]


def _subject(trajectory: Trajectory) -> int:
    """Of the user, else the session, else the trajectory: never the same for two kinds of them."""
    kinds = {"user": trajectory.user_ref, "session": trajectory.session_id, "trajectory": trajectory.trajectory_id}
    kind, name = next(((kind, name) for kind, name in kinds.items() if name), ("", ""))
    return int.from_bytes(blake2b(f"{kind} {name}".encode(errors="replace"), digest_size=8).digest(), "big")


def _measures(trajectory: Trajectory) -> dict[str, float | None]:
    """What the trajectory itself tells. A success in part is no failure; a duration of 0 is an unknown one."""
    effort, outcome, metadata = effort_of(trajectory), trajectory.outcome, trajectory.metadata
    took = _seconds(trajectory.end_timestamp) - _seconds(trajectory.start_timestamp)
    return {
        "failure": float(outcome.status == "failure") if outcome else None,
        "cost_usd": metadata.total_cost_usd,
        "latency_ms": took * 1000 if took > 0 else None,
        "tokens": metadata.total_tokens,
        "calls": effort.model_calls,
        "answer_chars": effort.characters,
    }


def _columns(trajectory: Trajectory, asked: str) -> dict[str, str | None]:
    task, policy = trajectory.task_context, trajectory.policy
    given = (trajectory.labels or {}).get("task_type")
    return {
        "task_type": given if isinstance(given, str) else _without_ids(task.group_key or task.task_id),
        "domain": domain_of(trajectory),
        "language": language_of(asked),
        "model": trajectory.metadata.model,
        "version": str(policy.version) if policy and policy.arm != "mixed" else None,
        "agent": trajectory.agent_id,
        "hour": f"{int(_seconds(trajectory.start_timestamp) // 3600 % 24):02d}",
        "length": _length(len(asked)),
    }


def _without_ids(name: str) -> str | None:
    """What names of tasks of one type share: words that hold digits say which one it is."""
    shared = _VARYING.sub("#", name)
    return shared if any(letter.isalpha() for letter in shared) else None


def _length(characters: int) -> str:
    below = 0
    for bound in _LENGTHS:
        if characters <= bound:
            return f"{below} to {bound} characters"
        below = bound + 1
    return f"{below} characters and more"


def _question(trajectory: Trajectory) -> str:
    """The user's first words."""
    seen = (turn.observation.content for turn in trajectory.turns if turn.observation.type == "user_message")
    content = next(seen, "")
    if not isinstance(content, dict):
        return text_of(content)
    messages = content.get("messages")
    users = [message for message in messages if _is_user(message)] if isinstance(messages, list) else []
    return text_of(users[0].get("content")) if users else ""


def _is_user(message: object) -> bool:
    return isinstance(message, dict) and cast("JsonObject", message).get("role") == "user"


def _offered(trajectory: Trajectory) -> list[str]:
    """Names of the tools that it could call."""
    names: list[object] = []
    for tool in trajectory.task_context.tools or ():
        inside = tool.get("function")
        names.append((cast("JsonObject", inside) if isinstance(inside, dict) else tool).get("name"))
    for turn in trajectory.turns[:1]:
        names += (turn.observation.context.available_tools or ()) if turn.observation.context else ()
    return [name for name in names if isinstance(name, str)][:MOST_TERMS]


def _seconds(at: datetime) -> float:
    """Since 1970; of a time without a zone as if it were UTC."""
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _number(value: float | None) -> float:
    """NaN in the place of what is unknown, infinite, or beyond what can be true."""
    return float(value) if value is not None and abs(value) <= LARGEST else math.nan


def _having(components: Mapping[str, Floats]) -> Members:
    """Which episodes have which components."""
    known = [~np.isnan(scores) for scores in components.values()]
    return Members(sparse.csc_array(np.stack(known, axis=1) if known else (0, 0)), tuple(components))


def _filled(values: Sequence[float], size: int) -> Floats:
    """NaN for the episodes behind the last one that has a value."""
    filled = np.full(size, np.nan)
    filled[: len(values)] = values
    return filled

"""Whose a message is: what it names of users, sessions, agents and trajectories, against what was erased.

By ids and never by text. An id counts as a whole: one that only begins like another is another one. Of users, sessions
and agents the past is erased: a message that began later than `CLOCKS` after the erasure was asked for is a new one's,
however late it comes. Ids of trajectories stay erased for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from ratchet.bus.message import decode
from ratchet.core.contract.erasure import AGENT, SESSION, TRAJECTORY, USER, Erasure
from ratchet.core.contract.roles import DEFAULT_ROLE

CLOCKS = timedelta(hours=1)
"""How far the clock of a producer may be ahead, so that what it sends late of an erased past is still recognised."""

Member = Any
"""Of a message that anyone may have sent: what is no text names nothing."""


class SpanNames(msgspec.Struct):
    """The members of a span that say whose it is."""

    user_ref: Member = None
    session: Member = None
    agent: Member = None
    started_at: Member = None


class Names(msgspec.Struct):
    """The members of any message that say whose it is."""

    role: Member = DEFAULT_ROLE
    trajectory_id: Member = None
    parent_trajectory_id: Member = None
    recorded_as: Member = None
    chosen_trajectory_id: Member = None
    rejected_trajectory_id: Member = None
    preference_id: Member = None
    feedback_id: Member = None
    trace_id: Member = None
    workflow_id: Member = None
    user_ref: Member = None
    session_id: Member = None
    agent_id: Member = None
    start_timestamp: Member = None
    timestamp: Member = None
    at: Member = None
    spans: Member = None

    @property
    def ids(self) -> list[str]:
        """Of trajectories, and what stands for a part of one: a trace, a preference, a piece of feedback."""
        named = (
            *(self.trajectory_id, self.parent_trajectory_id, self.recorded_as),
            *(self.chosen_trajectory_id, self.rejected_trajectory_id),
            *(self.preference_id, self.feedback_id, self.trace_id, self.workflow_id),
        )
        return [name for name in named if isinstance(name, str) and name]

    @property
    def own_ids(self) -> list[str]:
        """Those of them that go with it. Of what is said about trajectories these stay, and of a sub-agent its run."""
        opinions = (self.preference_id, self.feedback_id)
        named = opinions if any(opinions) else (self.trajectory_id, self.recorded_as, self.trace_id, self.workflow_id)
        return [name for name in named if isinstance(name, str) and name]


def names_in(body: bytes) -> Names:
    """What a message names; nothing where it cannot be read."""
    try:
        return decode(body, Names)
    except msgspec.DecodeError:
        return Names()


def is_of(erasure: Erasure, names: Names) -> bool:
    """Whether a message names what the erasure is of, and is of before it. What follows from ids stands in `erased`."""
    if erasure.role not in (None, names.role):
        return False
    if erasure.kind == TRAJECTORY:
        return erasure.ref in names.ids
    return any(
        erasure.ref == ref and (began is None or began <= erasure.asked_at + CLOCKS)
        for ref, began in _named(erasure.kind, names)
    )


@dataclass(frozen=True)
class Erasures:
    """Erasures by what they are of: there may be one for each trajectory that was switched off on its way."""

    oldest_first: Sequence[Erasure]
    _by_ref: dict[tuple[str, str], list[Erasure]] = field(init=False)

    def __post_init__(self) -> None:
        by_ref: dict[tuple[str, str], list[Erasure]] = {}
        for erasure in self.oldest_first:
            by_ref.setdefault((erasure.kind, erasure.ref), []).append(erasure)
        object.__setattr__(self, "_by_ref", by_ref)

    def which(self, names: Names) -> Erasure | None:
        """One that a message is of: of several of the same, the oldest."""
        refs = {(TRAJECTORY, ref) for ref in names.ids}
        refs |= {
            (kind, ref) for kind in (USER, SESSION, AGENT) for ref, _ in _named(kind, names) if isinstance(ref, str)
        }
        among = (erasure for ref in sorted(refs) for erasure in self._by_ref.get(ref, ()))
        return next((erasure for erasure in among if is_of(erasure, names)), None)


def _named(kind: str, names: Names) -> Iterator[tuple[Member, datetime | None]]:
    """What a message names of a kind, each with when that began by its producer's clock."""
    began = min(filter(None, map(_instant, (names.start_timestamp, names.timestamp, names.at))), default=None)
    yield {USER: names.user_ref, SESSION: names.session_id, AGENT: names.agent_id}[kind], began
    for raw in names.spans if isinstance(names.spans, list) else ():
        span = msgspec.convert(raw, SpanNames) if isinstance(raw, dict) else SpanNames()
        yield {USER: span.user_ref, SESSION: span.session, AGENT: span.agent}[kind], _instant(span.started_at)


def _instant(text: Member) -> datetime | None:
    try:
        instant = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)

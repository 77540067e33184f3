"""What every import has in common: how a format makes messages of its records, and what the file does not say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ratchet.core.contract import DEFAULT_ROLE, JsonObject, Preference, Trajectory

UNKNOWN_TIME = datetime(2024, 6, 1, tzinfo=UTC)
"""The instant that stands for `unknown`; a fixed one, or a second import would differ from the first."""

Imported = Trajectory | Preference
"""What a record becomes."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What the file does not say."""

    role: str = DEFAULT_ROLE
    model: str = "unknown"
    domain: str | None = None
    outcome: str | None = None
    """The score (0 to 1) of a record that is its verified outcome. Without a name, scores stay labels."""
    judged_by: str = "teacher"
    """Who chose between the answers of a pair: `human` or `teacher`. A file does not say; only people's choices count
    where a job asks for a share of them."""


class MalformedRecord(ValueError):
    """Why a record cannot become a trajectory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a record says about a run, beside its conversation. Only what it does say is given."""

    id: str | None = None
    """Its id there: the same id is the same trajectory. Without one, equal content is."""
    session: str | None = None
    task: str | None = None
    """Runs of one task are tries of it, which can be compared. Without one, equal prompts are one task."""
    agent: str | None = None
    model: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    tools: Sequence[JsonObject] = ()
    """The tools that were offered, in OpenAI's form."""
    tokens: int | None = None
    cost_usd: float | None = None
    error: str | None = None
    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    """By name. All become labels; `--outcome NAME` says which one is the verified outcome."""
    labels: JsonObject = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTrajectory(Facts):
    """One conversation as another system logged it."""

    messages: Sequence[JsonObject]
    """An OpenAI chat: system, user, assistant (with `tool_calls`) and tool messages, first to last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedPreference:
    """A better and a worse answer to one prompt: texts, or lists of OpenAI messages."""

    prompt: str | list[JsonObject]
    chosen: str | list[JsonObject]
    rejected: str | list[JsonObject]
    tools: Sequence[JsonObject] = ()


@dataclass(frozen=True, slots=True)
class Importer:
    """One format of logged trajectories."""

    summary: str
    """What its files hold, for `ratchet import --help`."""
    messages_of: Callable[[object, ImportOptions], Iterable[Imported]]
    """The messages of one record, redacted: the same record must give the same messages, byte for byte, so that
    importing twice changes nothing. Raises `MalformedRecord`, another `ValueError` or `Rejected` for a
    record that does not hold one: the import reports it and leaves it out."""
    group_of: Callable[[object], str | None] | None = None
    """For formats in which several records are one run: the run of a record. `messages_of` then gets the list of all
    records of a run, wherever they stand, and None leaves a record out of all runs."""

"""Imports trajectories in tau-bench's result format: `{task_id, trial, reward, info, traj}`, `traj` an OpenAI chat.

Source: sierra-research/tau-bench; its `run.py` writes a JSON list of these. One record and JSON lines are read too.
The reward there is checked against the final state of the environment's database: it becomes a verified outcome.

The same record always becomes the same message, byte for byte, so importing twice changes nothing:

- the trajectory id is a digest of task, trial, reward and chat, whatever file the record stands in;
- the format has no times: every time is `EPOCH`, so the duration of an imported trajectory is zero, that is, unknown;
- the format names neither the model nor the tools that were offered: the model is an option, tools are left out.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import msgspec

from ratchet.contract import DEFAULT_ROLE, JsonObject, Outcome, Trajectory, encode, named_id
from ratchet.contract.trajectory import TaskContext, TrajectoryMetadata, TrajectoryTurn
from ratchet.errors import InvalidMessage, NotFound, Rejected
from ratchet.importers.report import ImportReport, Malformed, NothingStored, Sink, Stored, Told
from ratchet.rules.chat import ChatError, trajectory_turns
from ratchet.rules.redaction import Redactor

EPOCH = datetime(2024, 6, 1, tzinfo=UTC)
"""The instant that stands for `unknown`; a fixed one, or a second import would differ from the first."""
SOURCE = "import:tau-bench"
CHUNK = 200
"""Records published together."""
SUCCESS = 1.0 - 1e-6
"""Rewards from here on are successes, as in tau-bench itself."""
MAX_REWARD = 1e9
"""tau-bench's rewards lie in 0..1; this only keeps out what no float can hold, and NaN."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What the file does not say."""

    role: str = DEFAULT_ROLE
    model: str = "unknown"
    domain: str | None = None
    """By default read from the system prompt (`# Airline Agent Policy`), `none` where that does not say."""


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """A line that is not JSON."""

    reason: str


class _MalformedRecord(ValueError):
    """Why a record cannot become a trajectory."""


async def import_tau_bench(
    sink: Sink,
    path: Path,
    options: ImportOptions | None = None,
    stored: Stored | None = None,
    told: Told | None = None,
) -> ImportReport:
    """Publish every readable record of the file that is not stored yet, and report the others one by one.

    Raises `NotFound` when there is no such file, `Rejected` when it is not JSON at all, and what the sink raises while
    the broker is away: importing again goes on where that happened.
    """
    report, seen = ImportReport(), set[str]()
    records = read_records(path)
    for begin in range(0, len(records), CHUNK):
        chunk = dict(enumerate(records[begin : begin + CHUNK], begin))
        readable = _readable(chunk, options or ImportOptions(), seen, report)
        missing = await _not_stored(readable, stored or NothingStored(), report)
        await _publish(sink, missing, report)
        report.records += len(chunk)
        if told is not None:
            told(report.records, len(records))
    report.malformed.sort(key=lambda malformed: malformed.index)
    return report


def _readable(
    records: dict[int, object], options: ImportOptions, seen: set[str], report: ImportReport
) -> dict[int, Trajectory]:
    """The trajectories among the records, each once."""
    found: dict[int, Trajectory] = {}
    for index, record in records.items():
        try:
            trajectory = trajectory_of(record, options)
        except (_MalformedRecord, ChatError, Rejected, UnicodeError) as error:
            report.malformed.append(Malformed(index, str(error)))
            continue
        if trajectory.trajectory_id in seen:
            report.repeated += 1
            continue
        seen.add(trajectory.trajectory_id)
        found[index] = trajectory
    return found


async def _not_stored(chunk: dict[int, Trajectory], stored: Stored, report: ImportReport) -> dict[int, Trajectory]:
    """Those that are new; the others are counted, by role where theirs is another."""
    roles = await stored.roles([trajectory.trajectory_id for trajectory in chunk.values()])
    missing: dict[int, Trajectory] = {}
    for index, trajectory in chunk.items():
        role = roles.get(trajectory.trajectory_id)
        if role is None:
            missing[index] = trajectory
        elif role == trajectory.role:
            report.present += 1
        else:
            report.elsewhere[role] += 1
    return missing


async def _publish(sink: Sink, chunk: dict[int, Trajectory], report: ImportReport) -> None:
    """Publish together; when one is refused, one by one, to know which."""
    try:
        await sink.publish_all(list(chunk.values()))
    except (InvalidMessage, Rejected) as error:
        if len(chunk) == 1:
            report.malformed.append(Malformed(next(iter(chunk)), str(error)))
            return
        for index, trajectory in chunk.items():
            await _publish(sink, {index: trajectory}, report)
        return
    for trajectory in chunk.values():
        report.published += 1
        report.redactions.update((trajectory.labels or {}).get("redactions", {}))


def read_records(path: Path) -> list[object]:
    """The records of a file: a JSON list, one object, or JSON lines."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {path}") from error
    except IsADirectoryError as error:
        raise Rejected(f"{path} is a directory, not a file") from error
    except (OSError, UnicodeError) as error:
        raise Rejected(f"cannot read {path}: {error}") from error
    if not text.strip():
        raise Rejected(f"{path} is empty")
    try:
        parsed: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        if not text.lstrip().startswith("{"):
            raise Rejected(f"{path} is not JSON: {error}") from error
        records = [_line(line) for line in text.split("\n") if line.strip()]
        if all(isinstance(record, _Unreadable) for record in records):
            raise Rejected(f"{path} is neither JSON nor JSON lines: {error}") from error
        return records
    return cast("list[object]", parsed) if isinstance(parsed, list) else [parsed]


def _line(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        return _Unreadable(f"not JSON: {error}")


def trajectory_of(record: object, options: ImportOptions) -> Trajectory:
    """The trajectory of a record, redacted. Raises a `ValueError` or `Rejected` that says what is wrong with it."""
    fields, messages = _checked(record)
    reward, task, trial = _reward(fields["reward"]), str(fields["task_id"]), fields.get("trial") or 0
    redacted = Redactor().redact(messages)
    instructions, turns = trajectory_turns(redacted.value, started_at=EPOCH)
    if not turns:
        raise _MalformedRecord("traj holds no message of the assistant")
    domain = options.domain or _domain(instructions) or "none"
    labels: JsonObject = {"trial": trial}
    if redacted.counts:
        labels["redactions"] = redacted.counts
    trajectory = Trajectory(
        trajectory_id=named_id("tau-bench", task, trial, _digest(reward, messages)),
        session_id=f"tau-bench/{domain}/{task}/{trial}",
        agent_id="tau-bench",
        start_timestamp=EPOCH,
        end_timestamp=EPOCH,
        turns=[_with_success(turn) for turn in turns],
        task_context=TaskContext(
            task_id=task, instructions=instructions, domain=domain, group_key=f"tau-bench/{domain}/{task}"
        ),
        metadata=TrajectoryMetadata(model=options.model, source=SOURCE),
        role=options.role,
        outcome=_outcome(reward),
        labels=labels,
    )
    encode(trajectory)  # text that is not Unicode shows here, and not on the way to the broker
    return trajectory


def _checked(record: object) -> tuple[JsonObject, list[JsonObject]]:
    """The record's fields and its chat."""
    if isinstance(record, _Unreadable):
        raise _MalformedRecord(record.reason)
    if not isinstance(record, dict):
        raise _MalformedRecord("is not an object")
    fields = cast("JsonObject", record)
    missing = [name for name in ("task_id", "reward", "traj") if fields.get(name) is None]
    if missing:
        raise _MalformedRecord(f"has no {', '.join(missing)}")
    if isinstance(fields["task_id"], bool) or not isinstance(fields["task_id"], int | str):
        raise _MalformedRecord("task_id is neither a number nor text")
    traj = fields["traj"]
    if not isinstance(traj, list):
        raise _MalformedRecord("traj is not a list of messages")
    messages = cast("list[object]", traj)
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise _MalformedRecord(f"message {index} is not an object")
    return fields, cast("list[JsonObject]", messages)


def _digest(reward: float, messages: list[JsonObject]) -> str:
    return hashlib.sha256(json.dumps([reward, messages], sort_keys=True).encode()).hexdigest()


def _reward(value: object) -> float:
    if not isinstance(value, bool | int | float) or not abs(value) <= MAX_REWARD:
        raise _MalformedRecord("reward is not a number within reason")
    return float(value)


def _outcome(reward: float) -> Outcome:
    if reward >= SUCCESS:
        return Outcome(status="success", completion_percentage=100.0, score=reward, verified_by="environment")
    if reward > 0.0:
        return Outcome(status="partial", completion_percentage=100.0 * reward, score=reward, verified_by="environment")
    return Outcome(status="failure", completion_percentage=0.0, score=reward, verified_by="environment")


def _domain(instructions: str) -> str | None:
    """`airline` from `# Airline Agent Policy`, as tau-bench's policies begin."""
    heading = re.match(r"#\s*(\w+)\s+agent\s+policy\b", instructions.lstrip(), re.IGNORECASE)
    return heading[1].lower() if heading else None


def _with_success(turn: TrajectoryTurn) -> TrajectoryTurn:
    """tau-bench's tools answer `Error: ...` when they fail."""
    output: object = turn.result.output
    if not isinstance(output, str) or not output.startswith("Error"):
        return turn
    return msgspec.structs.replace(turn, result=msgspec.structs.replace(turn.result, success=False))

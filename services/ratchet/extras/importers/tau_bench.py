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

import msgspec

from ratchet.core.contract import JsonObject, Outcome, Trajectory, encode, named_id
from ratchet.core.contract.trajectory import TaskContext, TrajectoryMetadata, TrajectoryTurn
from ratchet.core.rules.chat import trajectory_turns
from ratchet.core.rules.redaction import redact
from ratchet.dialects.foreign_values import id_of, number_of
from ratchet.extras.importers.base import UNKNOWN_TIME, Importer, ImportOptions, MalformedRecord
from ratchet.extras.importers.building import chat_of, fields_of

EPOCH = UNKNOWN_TIME
"""The time of everything in these files."""
SOURCE = "import:tau-bench"
SUCCESS = 1.0 - 1e-6
"""Rewards from here on are successes, as in tau-bench itself."""


def trajectory_of(record: object, options: ImportOptions) -> Trajectory:
    """The trajectory of a record, redacted. Raises a `ValueError` or `Rejected` that says what is wrong with it."""
    fields = fields_of(record)
    if missing := [name for name in ("task_id", "reward", "traj") if fields.get(name) is None]:
        raise MalformedRecord(f"has no {', '.join(missing)}")
    if id_of(fields["task_id"]) is None:
        raise MalformedRecord("task_id is neither a number nor text")
    messages, reward = chat_of(fields["traj"], "traj"), number_of(fields["reward"])
    if reward is None:
        raise MalformedRecord("reward is not a number")
    task, trial = str(fields["task_id"]), fields.get("trial") or 0
    redacted = redact(messages)
    instructions, turns = trajectory_turns(redacted.value, started_at=EPOCH)
    if not turns:
        raise MalformedRecord("traj holds no message of the assistant")
    # `airline` from `# Airline Agent Policy`, as tau-bench's policies begin.
    heading = re.match(r"#\s*(\w+)\s+agent\s+policy\b", instructions.lstrip(), re.IGNORECASE)
    domain = options.domain or (heading[1].lower() if heading else "none")
    digest = hashlib.sha256(json.dumps([reward, messages], sort_keys=True).encode()).hexdigest()
    labels: JsonObject = {"trial": trial}
    if redacted.counts:
        labels["redactions"] = redacted.counts
    trajectory = Trajectory(
        trajectory_id=named_id("tau-bench", task, trial, digest),
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
        outcome=Outcome(
            status="success" if reward >= SUCCESS else "partial" if reward > 0.0 else "failure",
            completion_percentage=100.0 if reward >= SUCCESS else 100.0 * max(reward, 0.0),
            score=reward,
            verified_by="environment",
        ),
        labels=labels,
    )
    encode(trajectory)  # text that is not Unicode shows here, and not on the way to the broker
    return trajectory


def _with_success(turn: TrajectoryTurn) -> TrajectoryTurn:
    """tau-bench's tools answer `Error: ...` when they fail."""
    output: object = turn.result.output
    if not isinstance(output, str) or not output.startswith("Error"):
        return turn
    return msgspec.structs.replace(turn, result=msgspec.structs.replace(turn.result, success=False))


TAU_BENCH = Importer(summary="tau-bench results", messages_of=lambda record, options: [trajectory_of(record, options)])

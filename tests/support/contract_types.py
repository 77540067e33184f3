"""The typed mirror of every schema: messages, summaries, values in buckets, manifests and rows."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ratchet.bus.projection import Cursor, Folded
from ratchet.canary_deployer.domain.rollout import Rollout
from ratchet.canary_deployer.domain.trajectories import Chunk
from ratchet.canary_deployer.leadership import Leader
from ratchet.core.contract import MESSAGES
from ratchet.core.contract.evaluation_task import Task
from ratchet.core.contract.policy_manifest import PolicyManifest
from ratchet.core.contract.schema_report import SchemaReport
from ratchet.core.contract.snapshot import LabelRow, PairRow, SnapshotManifest, TrajectoryRow
from ratchet.core.contract.state import Job, Key, KeyUsage, PolicyVersion, Route, SealedResponse
from ratchet.core.contract.turn import TurnSummary
from ratchet.reward_computer.domain.history import TurnHistory
from ratchet.reward_computer.domain.normalization import ScoreWindows
from ratchet.rl_coordinator.triggers.firing import Claim
from ratchet.trainer_worker.s3_artifacts import StoredCheckpoint
from tests.support.contract_files import TOPIC_OF

TYPES: dict[str, Any] = {
    **{name: MESSAGES[topic.name] for name, topic in TOPIC_OF.items()},
    "turn.summary.v1": TurnSummary,
    "route.v1": Route,
    "policy.v1": PolicyVersion,
    "job.v1": Job,
    "key.v1": Key,
    "key.usage.v1": KeyUsage,
    "response.state.v1": SealedResponse,
    "leader.v1": Leader,
    "rollout.v1": Rollout,
    "rollout.chunk.v1": Chunk,
    "count.v1": Folded[int],
    "turn.history.v1": Folded[TurnHistory],
    "score.windows.v1": Folded[ScoreWindows],
    "cursor.v1": Cursor,
    "request.alias.v1": str,
    "slot.v1": datetime,
    "claim.v1": Claim,
    "policy.manifest.v1": PolicyManifest,
    "snapshot.manifest.v1": SnapshotManifest,
    "checkpoint.manifest.v1": StoredCheckpoint,
    "schema.report.v1": SchemaReport,
    "evaluation.task.v1": Task,
    "trajectory.row.v1": TrajectoryRow,
    "pair.row.v1": PairRow,
    "label.row.v1": LabelRow,
}
"""By the name of the schema. What one service keeps to itself is a type of that service."""

"""Typed mirror of `contracts/`: one struct per subject, immutable, JSON in and out. Imports no broker and no torch."""

from ratchet.bus.message import JsonObject, Message, Value, decode, encode, named_id
from ratchet.core.contract.audit import AuditEntry
from ratchet.core.contract.deployment import ModelDeployed, ModelRollout
from ratchet.core.contract.gateway_notes import GatewayNotes
from ratchet.core.contract.learning import LearningEvent
from ratchet.core.contract.operations import Alert, DeadLetter, Stored
from ratchet.core.contract.opt_out import OptOut
from ratchet.core.contract.reward import Feedback, Preference, Reward
from ratchet.core.contract.roles import DEFAULT_ROLE, role_subject
from ratchet.core.contract.spans import Spans
from ratchet.core.contract.training import TrainingDispatch, TrainingRequest, TrainingStatus
from ratchet.core.contract.trajectory import Outcome, PolicyClaim, Start, Trajectory, TrajectoryEnd
from ratchet.core.contract.turn import Turn
from ratchet.core.contract.workflows import WorkflowExecution

MESSAGES: dict[str, type[Message]] = {
    kind.TOPIC: kind
    for kind in (
        Trajectory,
        TrajectoryEnd,
        Start,
        Turn,
        Spans,
        GatewayNotes,
        Reward,
        Feedback,
        Preference,
        OptOut,
        TrainingRequest,
        TrainingStatus,
        TrainingDispatch,
        ModelDeployed,
        ModelRollout,
        Stored,
        Alert,
        DeadLetter,
        AuditEntry,
        WorkflowExecution,
        LearningEvent,
    )
}
"""Topic -> message type."""

__all__ = [
    "DEFAULT_ROLE",
    "MESSAGES",
    "Alert",
    "AuditEntry",
    "DeadLetter",
    "Feedback",
    "GatewayNotes",
    "JsonObject",
    "LearningEvent",
    "Message",
    "ModelDeployed",
    "ModelRollout",
    "OptOut",
    "Outcome",
    "PolicyClaim",
    "Preference",
    "Reward",
    "Spans",
    "Start",
    "Stored",
    "TrainingDispatch",
    "TrainingRequest",
    "TrainingStatus",
    "Trajectory",
    "TrajectoryEnd",
    "Turn",
    "Value",
    "WorkflowExecution",
    "decode",
    "encode",
    "named_id",
    "role_subject",
]

"""Typed mirror of `contracts/`: one struct per subject, immutable, JSON in and out. Imports no broker and no torch."""

from ratchet.bus.message import JsonObject, Message, Value, decode, encode, named_id
from ratchet.contract.deployment import ModelDeployed, ModelRollout
from ratchet.contract.gateway_notes import GatewayNotes
from ratchet.contract.operations import Alert, DeadLetter, Stored
from ratchet.contract.reward import Feedback, Preference, Reward
from ratchet.contract.roles import DEFAULT_ROLE, role_subject
from ratchet.contract.start import Start
from ratchet.contract.training import TrainingDispatch, TrainingRequest, TrainingStatus
from ratchet.contract.trajectory import Outcome, PolicyClaim, Trajectory, TrajectoryEnd
from ratchet.contract.turn import Turn

MESSAGES: dict[str, type[Message]] = {
    kind.TOPIC: kind
    for kind in (
        Trajectory,
        TrajectoryEnd,
        Start,
        Turn,
        GatewayNotes,
        Reward,
        Feedback,
        Preference,
        TrainingRequest,
        TrainingStatus,
        TrainingDispatch,
        ModelDeployed,
        ModelRollout,
        Stored,
        Alert,
        DeadLetter,
    )
}
"""Topic -> message type."""

__all__ = [
    "DEFAULT_ROLE",
    "MESSAGES",
    "Alert",
    "DeadLetter",
    "Feedback",
    "GatewayNotes",
    "JsonObject",
    "Message",
    "ModelDeployed",
    "ModelRollout",
    "Outcome",
    "PolicyClaim",
    "Preference",
    "Reward",
    "Start",
    "Stored",
    "TrainingDispatch",
    "TrainingRequest",
    "TrainingStatus",
    "Trajectory",
    "TrajectoryEnd",
    "Turn",
    "Value",
    "decode",
    "encode",
    "named_id",
    "role_subject",
]

"""What a worker of the registry must be, beyond its schema: an open list of values is no error to a reader."""

from __future__ import annotations

import re

from ratchet.core.contract.workflows import MODEL_TYPES, TASK_TYPES, Worker
from ratchet.core.errors import BadRequest

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def check_worker(worker: Worker) -> None:
    """Raises `BadRequest`."""
    if _NAME.fullmatch(worker.name) is None:
        raise BadRequest("a worker's name has lower-case letters, digits, - and _, at most 64", param="name")
    if (worker.model is None) == (worker.url is None):
        raise BadRequest("a worker has either a `model` or a `url`", param="model")
    if worker.model_type not in MODEL_TYPES:
        raise BadRequest(_no("model_type", worker.model_type, MODEL_TYPES), param="model_type")
    unknown = [kind for kind in worker.capabilities if kind not in TASK_TYPES]
    if unknown:
        raise BadRequest(_no("type of sub-tasks", unknown[0], TASK_TYPES), param="capabilities")


def _no(kind: str, given: str, known: tuple[str, ...]) -> str:
    return f"there is no {kind} {given[:40]!r}; there are {', '.join(known)}"

"""Why a training cannot go on, with the error class that its status carries. Classified once, here."""

from __future__ import annotations

from ratchet.errors import DigestMismatch, NotFound, RatchetError, Rejected, Unavailable

OOM, CONVERGENCE, DATA, INFRA, TIMEOUT, UNKNOWN = "OOM", "CONVERGENCE", "DATA", "INFRA", "TIMEOUT", "UNKNOWN"


class TrainingFailed(RatchetError):
    """Root of what stops a training; `code` is its error class."""

    code = UNKNOWN


class DataUnusable(TrainingFailed):
    """The dataset cannot be read, or nothing in it can be learnt from."""

    code = DATA


class Diverged(TrainingFailed):
    """The loss is no longer a finite number."""

    code = CONVERGENCE


class TimedOut(TrainingFailed):
    """There was not enough time."""

    code = TIMEOUT


class StopRequested(Exception):
    """The training was asked to stop where no train step is at work; what counts is the newest checkpoint, if any."""


def error_code(error: BaseException) -> str:
    """Error class of whatever ended a training."""
    if isinstance(error, TrainingFailed):
        return error.code or UNKNOWN
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return OOM
    if isinstance(error, (Rejected, DigestMismatch, NotFound)):
        return DATA
    if isinstance(error, (Unavailable, OSError)):
        return INFRA
    return UNKNOWN

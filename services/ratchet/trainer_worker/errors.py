"""Why a training cannot go on, with the error class that its status carries. Classified once, here."""

from __future__ import annotations

from ratchet.core.contract.training import ErrorCode, HealthStop
from ratchet.core.errors import DigestMismatch, NotFound, RatchetError, Rejected, Unavailable

NO_MEMORY = (
    "can't allocate memory",
    "Cannot allocate memory",
    "std::bad_alloc",
    "CUDA out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "can't start new thread",  # no room for its stack
)
"""What other errors say where memory ran out: of torch and the system on the CPU, and within a library of CUDA."""
PROBE_BYTES = 8 * 1024 * 1024
"""A training that cannot have as much more is out of memory."""
NO_ROOM = ("No space left on device", "inline_container.cc")
"""What safetensors, and torch's writer of archives, say on a full disk."""
LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "NCCL")
"""What torch says where another process of the training is gone, or cannot be reached."""
KERNEL_ASSERT = "device-side assert"
"""What CUDA says when a kernel refused its input, which is the program's fault or the data's, not the machine's."""


class TrainingFailed(RatchetError):
    """Root of what stops a training; `code` is its error class."""

    code = ErrorCode.UNKNOWN


class DataUnusable(TrainingFailed):
    """The dataset cannot be read, or nothing in it can be learnt from."""

    code = ErrorCode.DATA


class EqualRewards(DataUnusable):
    """No group of tries has two different rewards; those of a new choice would be the same tries."""

    def __init__(self, groups: int) -> None:
        super().__init__(
            f"all {groups} groups of tries have equal rewards, so there is nothing to tell apart: collect more tries of"
            " these tasks or tries of other tasks; `ratchet plan` says what the data is good for now"
        )


class NoGradient(DataUnusable):
    """No weight would move, however long the training goes on."""

    def __init__(self, steps: int, largest: float) -> None:
        super().__init__(
            f"the gradients of the first {steps} train steps have a norm of at most {largest:.1g}, which the optimizer"
            " takes for none, so no weight would move: the answers that it compares are the same tokens, or a"
            " hyperparameter (beta, max_grad_norm, importance_cap) scales what they teach away"
        )


class ModelUnusable(DataUnusable):
    """A model that the job names is not there, or cannot be loaded."""


class Diverged(TrainingFailed):
    """The loss is no longer a finite number."""

    code = ErrorCode.CONVERGENCE


class Unhealthy(Diverged):
    """The policy broke, and no earlier weights of the training are worth keeping."""

    def __init__(self, stop: HealthStop) -> None:
        super().__init__(stop.message)
        self.stop = stop


class SearchFailed(DataUnusable):
    """A search for a bundle cannot go on. A further attempt with other data would begin anew, and forget what this one
    has used of the budget: there is none."""


class NothingBetter(SearchFailed):
    """No candidate did better than what serves the role."""

    code = ErrorCode.CONVERGENCE


class TimedOut(TrainingFailed):
    """There was not enough time."""

    code = ErrorCode.TIMEOUT


class RankLost(TrainingFailed):
    """Another process of the same training has ended, so this one cannot go on either."""

    code = ErrorCode.INFRA


class StopRequested(Exception):
    """The training was asked to stop: what counts is the newest checkpoint, if any."""


def error_code(error: BaseException) -> str:
    """Error class of whatever ended a training. Those of torch and safetensors go by name."""
    name, message = type(error).__name__, str(error)
    if isinstance(error, TrainingFailed):
        return error.code or ErrorCode.UNKNOWN
    of_the_system = isinstance(error, (RuntimeError, OSError))
    lacks_memory = of_the_system and any(words in message for words in NO_MEMORY)
    lacks_memory |= isinstance(error, SystemError) and _has_no_memory()
    if isinstance(error, MemoryError) or name == "OutOfMemoryError" or lacks_memory:
        return ErrorCode.OOM
    if _lacks_room(error) or is_lost_peer(error):
        return ErrorCode.INFRA
    if isinstance(error, (Rejected, DigestMismatch, NotFound)) or name == "SafetensorError":
        return ErrorCode.DATA
    if isinstance(error, (Unavailable, OSError)) or (name == "AcceleratorError" and KERNEL_ASSERT not in message):
        return ErrorCode.INFRA
    return ErrorCode.UNKNOWN


def reason_of(error: BaseException) -> str:
    """What a status says of an error."""
    text = str(error) or type(error).__name__
    return f"the disk is full: {text}" if _lacks_room(error) else text


def is_final(error: BaseException) -> bool:
    """Whether another attempt would fail the same way, whatever data is chosen."""
    if isinstance(error, (EqualRewards, NoGradient, ModelUnusable, SearchFailed)):
        return True
    # Arguments that a library refuses are the request's, which stays.
    return isinstance(error, (ValueError, TypeError)) and error_code(error) == ErrorCode.UNKNOWN


def is_lost_peer(error: BaseException) -> bool:
    """Whether torch means by it that another process of the training cannot be reached."""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in LOST_PEER)


def _has_no_memory() -> bool:
    """Whether there is none now. C code that gets none may forget to say so: Python raises `SystemError` then."""
    try:
        return not bytearray(PROBE_BYTES)
    except MemoryError:
        return True


def _lacks_room(error: BaseException) -> bool:
    known = isinstance(error, RuntimeError) or type(error).__name__ == "SafetensorError"
    return known and any(words in str(error) for words in NO_ROOM)

"""The code of the algorithms: one file each. `rules.algorithms` declares them; a job imports only what it needs."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from ratchet.core.errors import ConfigError, Rejected
from ratchet.core.rules.algorithms import ALGORITHMS
from ratchet.trainer_worker.training.algorithms.base import Train


def load_train(name: str) -> Train:
    """The algorithm's code. Raises `Rejected` for an algorithm that this worker does not have, or cannot import."""
    try:
        module, _, function = ALGORITHMS[name].train.partition(":")
        return cast("Train", getattr(import_module(module), function))
    except KeyError as error:
        raise Rejected(f"unknown algorithm {name!r}; this worker knows {', '.join(ALGORITHMS)}") from error
    except (ConfigError, ImportError, AttributeError) as error:
        raise Rejected(f"algorithm {name!r} cannot be used here: {error}") from error

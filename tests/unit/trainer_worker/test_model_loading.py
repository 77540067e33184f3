"""A model that cannot be loaded: the job's fault, or the machine's."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

import pytest

from ratchet.trainer_worker.errors import ModelUnusable
from ratchet.trainer_worker.training.policy import _loaded


@dataclass
class Broken:
    """In the place of an auto class."""

    error: Exception

    def from_pretrained(self, _source: str) -> None:
        raise self.error


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EIO, errno.EMFILE])
def test_what_the_machine_lacks_is_no_fault_of_the_model(number: int) -> None:
    with pytest.raises(OSError, match=os.strerror(number)):
        _loaded(Broken(OSError(number, os.strerror(number))), "base model", "m")


@pytest.mark.parametrize("error", [OSError("there is no config.json"), ValueError("unknown architecture")])
def test_what_is_no_model_is_the_jobs_fault(error: Exception) -> None:
    with pytest.raises(ModelUnusable, match=str(error)):
        _loaded(Broken(error), "base model", "m")

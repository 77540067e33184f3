"""The training process runs the code of an algorithm that a package brings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.core.errors import Rejected
from ratchet.trainer_worker.training.algorithms import load_train
from tests.support.packages import write_package

ACME = """
from ratchet.core.rules.algorithms import Algorithm

simpo = Algorithm(
    name="acme.simpo", train="acme:train", learns_from="pairs", hyperparameters=frozenset({"beta"}),
    needs_token_ids=False, default_batch_size=16,
)
unfinished = Algorithm(
    name="acme.unfinished", train="acme:no_such_function", learns_from="pairs", hyperparameters=frozenset(),
    needs_token_ids=False, default_batch_size=16,
)

def train(spec, policy, examples, run): ...
"""
SCRIPT = """
import sys
from ratchet.core.errors import Rejected
from ratchet.trainer_worker.training.algorithms import load_train

try:
    print(load_train(sys.argv[1]).__module__)
except Rejected as error:
    print(error)
"""


def loaded(directory: Path, name: str) -> str:
    """What a process with the package prints about the algorithm's code."""
    entries = {"acme.simpo": "acme:simpo", "acme.unfinished": "acme:unfinished"}
    write_package(directory, "acme", ACME, {"ratchet.algorithms": entries})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(directory), *sys.path])}
    command = [sys.executable, "-c", SCRIPT, name]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()


def test_its_declaration_leads_to_its_code(tmp_path: Path) -> None:
    assert loaded(tmp_path, "acme.simpo") == "acme"


def test_code_that_is_not_there_is_refused_in_words(tmp_path: Path) -> None:
    assert loaded(tmp_path, "acme.unfinished") == (
        "algorithm 'acme.unfinished' cannot be used here: module 'acme' has no attribute 'no_such_function'"
    )


def test_an_algorithm_that_nothing_brings_is_refused_with_those_there_are() -> None:
    with pytest.raises(Rejected, match=r"unknown algorithm 'acme\.simpo'; this worker knows sft, rloo, .*kto"):
        load_train("acme.simpo")

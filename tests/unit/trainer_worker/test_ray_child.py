"""What a training on Ray is without Ray, and what it asks of a machine. With Ray: tests/ray."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from ratchet.trainer_worker.app import OWN_CLUSTER, RAY_CHILD
from ratchet.trainer_worker.job import Failed
from ratchet.trainer_worker.slots import Slot
from ratchet.trainer_worker.training.ray_rank import interface_of
from tests.support.trainer_runs import job_spec


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed here: see tests/ray")
async def test_without_ray_the_training_fails_in_words(tmp_path: Path) -> None:
    child = await Slot("one", ranks=2, program=(RAY_CHILD, OWN_CLUSTER)).start(job_spec("sft"), tmp_path)
    events = [event async for event in child.events()]
    assert (await child.wait()).code == 1
    (last,) = events
    assert isinstance(last, Failed)
    assert last.message == "training on Ray needs the extra `ray`: pip install 'ratchet-rl[ray]'"


def test_an_address_has_an_interface_where_the_machine_knows_it() -> None:
    assert interface_of("127.0.0.1") in ("lo", "lo0")
    assert interface_of("203.0.113.1") is None

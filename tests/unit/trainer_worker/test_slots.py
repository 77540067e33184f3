"""Every slot has a GPU of its own, and its trainings see no other; tried without a GPU, by their environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ratchet.errors import ConfigError
from ratchet.trainer_worker.child_process import Process, Streams
from ratchet.trainer_worker.slots import Slot, gpus_of_slots, visible_gpus
from tests.support.trainer_runs import job_spec


class Recorder:
    """A warm parent that keeps what a training would see, and makes none."""

    def __init__(self) -> None:
        self.environments: list[Mapping[str, str]] = []

    async def fork(self, directory: Path, environment: Mapping[str, str], streams: Streams) -> Process | None:
        self.environments.append(environment)
        raise InterruptedError("seen")


async def seen(tmp_path: Path, gpu: str | None) -> str | None:
    warm = Recorder()
    with pytest.raises(InterruptedError):
        await Slot("one", gpu, warm).start(job_spec("sft", str(tmp_path)), tmp_path)
    return warm.environments[0].get("CUDA_VISIBLE_DEVICES")


async def test_a_training_sees_the_gpu_of_its_slot_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert [await seen(tmp_path, gpu) for gpu in ("4", "GPU-8a1", "", None)] == ["4", "GPU-8a1", "", "4,5,6,7"]


@pytest.mark.parametrize(
    ("value", "gpus"),
    [("2,3", ("2", "3")), ("GPU-8a1, GPU-9b2", ("GPU-8a1", "GPU-9b2")), ("0,-1,1", ("0",)), ("-1", ()), ("", ())],
)
def test_the_workers_own_choice_of_gpus_holds_for_its_slots(tmp_path: Path, value: str, gpus: tuple[str, ...]) -> None:
    (tmp_path / "nvidia0").touch()
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": value}, tmp_path) == gpus


def test_without_a_choice_there_is_a_gpu_for_each_device_file(tmp_path: Path) -> None:
    assert visible_gpus({}, tmp_path) is None
    for name in ("nvidia4", "nvidia5", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == ("0", "1")


def test_slots_get_a_gpu_each_in_order() -> None:
    assert list(gpus_of_slots(2, None, ("4", "5", "6"))) == ["4", "5"]
    assert list(gpus_of_slots(2, ("6", "5"), ("4", "5", "6"))) == ["6", "5"]
    assert list(gpus_of_slots(3, (), ("4", "5"))) == ["", "", ""]
    assert list(gpus_of_slots(3, None, None)) == [None, None, None]


def test_two_slots_never_share_a_gpu() -> None:
    with pytest.raises(ConfigError, match="2 slots need 2 GPUs, and there are 1"):
        gpus_of_slots(2, None, ("0",))
    with pytest.raises(ConfigError, match="names a GPU twice: 1, 1"):
        gpus_of_slots(2, ("1", "1"), None)

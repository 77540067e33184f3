"""The slots of a worker, its directory, and a training that cannot be started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from ratchet.core.contract.training import Compute
from ratchet.core.errors import ConfigError, Rejected
from ratchet.trainer_worker.app import own_directory
from ratchet.trainer_worker.child_process import Child, Process, Streams
from ratchet.trainer_worker.job import LOG_FILE, JobSpec
from ratchet.trainer_worker.slots import Slot, gpus_of_slots, visible_gpus
from tests.support.trainer_runs import job_spec


class Recorder:
    """A fork server that keeps what a training would see, and makes none."""

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
    assert list(gpus_of_slots(2, None, ("4", "5", "6", "7"), 2)) == ["4,5", "6,7"]
    assert list(gpus_of_slots(3, (), ("4", "5"))) == ["", "", ""]
    assert list(gpus_of_slots(3, None, None)) == [None, None, None]


def test_two_slots_never_share_a_gpu() -> None:
    with pytest.raises(ConfigError, match="2 slots need 2 GPUs, and there are 1"):
        gpus_of_slots(2, None, ("0",))
    with pytest.raises(ConfigError, match=r"2 slots of 2 processes need 4 GPUs, and there are 3: .* at most 1"):
        gpus_of_slots(2, None, ("0", "1", "2"), 2)
    with pytest.raises(ConfigError, match="names a GPU twice: 1, 1"):
        gpus_of_slots(2, ("1", "1"), None)


def test_training_has_a_process_for_each_gpu_within_its_slot() -> None:
    slot = Slot("one", "4,5", None, ranks=2)
    ranks = [slot.ranks_for(for_gpus(count)) for count in (None, 0, 1, 2)]
    assert ranks == [2, 2, 1, 2]
    with pytest.raises(Rejected, match=r"compute\.gpu_count 3: a training of this worker has 2"):
        slot.ranks_for(for_gpus(3))


def for_gpus(count: int | None) -> JobSpec:
    spec = job_spec("sft")
    return replace(spec, config=replace(spec.config, compute=Compute(gpu_count=count)))


def test_what_a_killed_worker_left_is_gone_and_another_workers_stays(tmp_path: Path) -> None:
    for worker in ("w1", "w2"):
        (tmp_path / worker / "job-1" / "checkpoints").mkdir(parents=True)
        (tmp_path / worker / "job-1" / "checkpoints" / "weights").write_bytes(b"1")
    with own_directory(tmp_path / "w1"):
        assert list((tmp_path / "w1").iterdir()) == []
        assert (tmp_path / "w2" / "job-1" / "checkpoints" / "weights").exists()


def test_second_worker_of_the_same_name_is_refused_and_takes_nothing_away(tmp_path: Path) -> None:
    with own_directory(tmp_path / "w1"):
        running = tmp_path / "w1" / "job-1"
        running.mkdir()
        with pytest.raises(ConfigError, match="another worker named w1"), own_directory(tmp_path / "w1"):
            pass
        assert running.exists()
    with own_directory(tmp_path / "w1"):
        assert not running.exists()


pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted in /proc")


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_a_training_that_cannot_be_started_leaves_no_file_open(tmp_path: Path) -> None:
    (tmp_path / LOG_FILE).mkdir()
    before = open_files()
    with pytest.raises(IsADirectoryError):
        await Child.start(job_spec("sft", "base", "dataset"), tmp_path, None)
    assert open_files() == before

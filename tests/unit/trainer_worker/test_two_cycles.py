"""Adapters on a base that was published in bf16 are trained, continued and served, in bf16 and fp32, in each family."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from ratchet.contract.policy_manifest import ADAPTER, PolicyManifest, Probe
from ratchet.contract.training import Compute, Hyperparameters, Lora
from ratchet.engine_local.s3_policies import Fetched, PolicyLoader
from ratchet.errors import Rejected
from ratchet.stores.policies import publish_policy, upload_files
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.algorithms.base import Outcome
from ratchet.trainer_worker.training.learner.logprobs import Scorer
from ratchet.trainer_worker.training.learner.rows import Row
from ratchet.trainer_worker.training.policy import TrainedPolicy, load_policy, probe_policy, save_policy
from tests.support.blobs import MemoryBlobs
from tests.support.snapshot_rows import call, trajectory_row
from tests.support.tiny_models import write_family
from tests.support.trainer_runs import RecordingRun, job_spec

HYPER = Hyperparameters(learning_rate=2e-2, batch_size=4, epochs=2, warmup_steps=1, importance_cap=10.0)
LORA = Lora(r=8, alpha=16)
AT = datetime(2026, 1, 5, tzinfo=UTC)
FAMILIES = ["llama", "qwen3", "gemma", "mistral", "gpt2"]


@dataclass(frozen=True)
class Cycle:
    """What one training left."""

    outcome: Outcome
    adapter: Path
    probe: Probe
    dtype: str


def tries(policy: TrainedPolicy, seed: int) -> list[Any]:
    """Eight tries at two tasks with the policy's own log-probabilities, as engines log them; every other one wins."""
    draw = torch.Generator().manual_seed(seed)
    made: list[Any] = []
    for number in range(8):
        prompt = torch.randint(2, 300, (14,), generator=draw).tolist()
        answer = torch.randint(2, 300, (6,), generator=draw).tolist()
        row = Row.of("t", [*prompt, *answer], [False] * 14 + [True] * 6)
        with torch.no_grad():
            logprobs = Scorer(policy.model, bf16=policy.bf16).score([row]).logprobs_N.tolist()
        task = {"trajectory_id": f"t{number}", "task_key": f"k{number // 4}", "reward": float(number % 2)}
        made.append(trajectory_row(number, **task, calls=[call(prompt, answer, logprobs)]))
    return made


def trained(base: Path, folder: Path, precision: str, adapter: Path | None = None, algorithm: str = "rloo") -> Cycle:
    hyper = HYPER if adapter is not None else replace(HYPER, lora=LORA)
    spec = job_spec(algorithm, base=str(base), hyper=hyper, adapter=str(adapter) if adapter else None)
    spec = replace(spec, config=replace(spec.config, compute=Compute(mixed_precision=precision)))
    torch.manual_seed(0)
    policy = load_policy(spec)
    logged = tries(policy, 1 if adapter else 0)
    outcome = load_train(algorithm)(spec, policy, logged, RecordingRun(folder / "run", algorithm))
    save_policy(policy, folder / "adapter", str(base))
    return Cycle(outcome, folder / "adapter", probe_policy(policy, list(range(20, 60))), policy.dtype)


@pytest.fixture(scope="module", params=FAMILIES)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(tmp_path_factory.mktemp(request.param), request.param, torch.bfloat16)


@pytest.fixture(scope="module", params=["bf16", "fp32"])
def cycles(base: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Cycle]:
    """A new adapter, and the same one continued."""
    folder = tmp_path_factory.mktemp("cycles")
    first = trained(base, folder / "1", request.param)
    return [first, trained(base, folder / "2", request.param, first.adapter)]


def served(base: Path, cycle: Cycle, folder: Path, probe: Probe) -> Fetched:
    """What the engine makes of a cycle's adapter and a probe."""
    blobs = MemoryBlobs()
    manifest = PolicyManifest(
        kind=ADAPTER,
        base_model=str(base),
        files=upload_files(blobs, cycle.adapter),
        role="support",
        created_at=AT,
        dtype=cycle.dtype,
        probe=probe,
    )
    return PolicyLoader(blobs, folder).load(publish_policy(blobs, manifest).uri)


def test_both_cycles_start_on_policy_and_are_served(base: Path, cycles: list[Cycle], tmp_path: Path) -> None:
    for cycle in cycles:
        assert cycle.outcome.metrics["start_ess"] > 0.999
        assert served(base, cycle, tmp_path, cycle.probe).served.probed


def test_an_adapter_with_the_probe_of_another_one_is_refused(base: Path, cycles: list[Cycle], tmp_path: Path) -> None:
    first, second = cycles
    with pytest.raises(Rejected, match=r"log-probabilities on the probe differ by .* nats in the mean"):
        served(base, first, tmp_path, second.probe)


def test_a_policy_is_continued_in_what_it_was_computed_in(tmp_path: Path) -> None:
    """Unless a request says otherwise; without either a CPU computes in fp32."""
    base = write_family(tmp_path / "base", "llama", torch.bfloat16)
    plain = job_spec("sft", base=str(base))
    assert load_policy(plain).dtype == "float32"
    continued = load_policy(replace(plain, dtype="bfloat16"))
    assert (continued.dtype, continued.model.get_base_model().dtype) == ("bfloat16", torch.bfloat16)  # pyright: ignore
    asked = replace(plain, dtype="bfloat16", config=replace(plain.config, compute=Compute(mixed_precision="fp32")))
    assert load_policy(asked).dtype == "float32"

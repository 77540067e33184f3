"""Adapters on a base that was published in bf16 are sampled, trained, continued and served, in bf16 and fp32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from ratchet.core.contract.policy_manifest import ADAPTER, BFLOAT16, PolicyManifest, Probe
from ratchet.core.contract.snapshot import TrajectoryRow
from ratchet.core.contract.training import Compute, Hyperparameters, Lora
from ratchet.core.errors import Rejected
from ratchet.core.stores.policies import publish_policy, upload_files
from ratchet.local.engine_local.domain.answers import Completion
from ratchet.local.engine_local.domain.requests import Sampling
from ratchet.local.engine_local.s3_policies import PolicyLoader
from ratchet.local.engine_local.torch_batch import Batch, Job, Update
from ratchet.local.engine_local.torch_policies import Served, load_weights, serve
from ratchet.local.engine_local.torch_worker import report
from ratchet.trainer_worker.training.algorithms import load_train
from ratchet.trainer_worker.training.algorithms.base import Outcome
from ratchet.trainer_worker.training.policy import PRECISIONS, load_policy, probe_policy, save_policy
from tests.support.blobs import MemoryBlobs
from tests.support.snapshot_rows import call, label_row, pair_row, trajectory_row
from tests.support.tiny_models import write_family
from tests.support.toy_preferences import parrot_chats, parrot_labels, parrot_pairs
from tests.support.trainer_runs import RecordingRun, job_spec

LORA = Lora(r=8, alpha=16)
HYPER = Hyperparameters(learning_rate=2e-2, batch_size=4, epochs=2, warmup_steps=1, importance_cap=10.0, lora=LORA)
ONE_STEP = Hyperparameters(learning_rate=2e-2, batch_size=8, max_steps=1, warmup_steps=0, lora=LORA)
AT = datetime(2026, 1, 5, tzinfo=UTC)
CASES = [
    ("llama", "bf16"),
    ("gpt2", "fp32"),
    *(pytest.param((family, "bf16"), marks=pytest.mark.slow) for family in ("qwen3", "gemma", "mistral", "gpt2")),
    pytest.param(("llama", "fp32"), marks=pytest.mark.slow),
]
START_ESS = {"bf16": 0.999, "fp32": 0.999999}
"""Effective sample size of an engine's tries at the start: what rounding alone leaves of 1."""
PROBE = list(range(20, 60))


@dataclass(frozen=True)
class Cycle:
    """What one training left."""

    outcome: Outcome
    adapter: Path
    start: Probe
    """Of the policy before the first train step."""
    probe: Probe
    dtype: str


@dataclass(frozen=True)
class Case:
    """Two cycles on one base."""

    base: Path
    start_ess: float
    first: Cycle
    second: Cycle


def tries(engine: Served, seed: int) -> list[TrajectoryRow]:
    """Eight tries at two tasks, drawn and logged by the engine; every other one wins."""
    drawing = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(2, 300, (14,), generator=drawing).tolist() for _ in range(8)]
    return [
        trajectory_row(
            number,
            task_key=f"k{number // 4}",
            reward=float(number % 2),
            calls=[call(prompt, list(answer.token_ids), list(answer.logprobs))],
        )
        for number, (prompt, answer) in enumerate(zip(prompts, answers(engine, prompts), strict=True))
    ]


@torch.inference_mode()
def answers(engine: Served, prompts: Sequence[list[int]]) -> list[Completion]:
    """Six tokens behind each prompt, drawn in one batch."""
    ends: dict[int, Completion] = {}

    def on_end(number: int, update: Update) -> None:
        assert isinstance(update.end, Completion)
        ends[number] = update.end

    batch = Batch(engine.network, frozenset(), 0, seed=1)
    updates = batch.join([Job(prompt, Sampling(seed=n), 6, partial(on_end, n)) for n, prompt in enumerate(prompts)])
    while len(batch):
        updates += batch.step()
    report(updates)
    return [ends[number] for number in range(len(prompts))]


def trained(
    base: Path,
    folder: Path,
    precision: str,
    logged: Sequence[Any],
    adapter: Path | None = None,
    algorithm: str = "rloo",
    hyper: Hyperparameters = HYPER,
) -> tuple[Cycle, RecordingRun]:
    hyper = replace(hyper, lora=None if adapter else hyper.lora)
    spec = job_spec(algorithm, base=str(base), hyper=hyper, adapter=str(adapter) if adapter else None)
    spec = replace(spec, config=replace(spec.config, compute=Compute(mixed_precision=precision)))
    torch.manual_seed(0)
    policy = load_policy(spec)
    start = probe_policy(policy, PROBE)
    run = RecordingRun(folder / "run", algorithm)
    outcome = load_train(algorithm)(spec, policy, logged, run)
    save_policy(policy, folder / "adapter", str(base))
    return Cycle(outcome, folder / "adapter", start, probe_policy(policy, PROBE), policy.dtype), run


def served(base: Path, cycle: Cycle, folder: Path, probe: Probe) -> Served:
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


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A new adapter, and the same one continued, each from tries that the engine drew from the policy before it."""
    family, precision = request.param
    folder = tmp_path_factory.mktemp(family)
    base = write_family(folder / "base", family, torch.bfloat16)
    engine = serve(load_weights(base, PRECISIONS[precision]), None)
    first, _ = trained(base, folder / "1", precision, tries(engine, 0))
    engine = served(base, first, folder / "policies", first.probe)
    second, _ = trained(base, folder / "2", precision, tries(engine, 1), first.adapter)
    return Case(base, START_ESS[precision], first, second)


def test_both_cycles_start_on_policy_and_are_served(case: Case, tmp_path: Path) -> None:
    """On policy by the log-probabilities that the engine logged."""
    for cycle in (case.first, case.second):
        assert cycle.outcome.metrics["start_ess"] > case.start_ess
    assert case.second.start == case.first.probe
    assert served(case.base, case.second, tmp_path, case.second.probe).probed


def test_an_adapter_with_the_probe_of_another_one_is_refused(case: Case, tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"log-probabilities on the probe differ by .* nats in the mean"):
        served(case.base, case.first, tmp_path, case.second.probe)


def examples(algorithm: str, engine: Served, seed: int) -> list[Any]:
    """Eight of what an algorithm learns from."""
    made: dict[str, Callable[[], list[Any]]] = {
        "sft": lambda: [trajectory_row(n, messages=chat) for n, chat in enumerate(parrot_chats()[:8])],
        "dpo": lambda: [pair_row(n, **pair) for n, pair in enumerate(parrot_pairs()[:8])],
        "kto": lambda: [label_row(n, **label) for n, label in enumerate(parrot_labels()[:8])],
        "ppo": lambda: tries(engine, seed),
    }
    return made[algorithm]()


NOTHING = (0.0, 0.02)
AT_THE_START: dict[str, dict[str, tuple[float, float]]] = {
    "sft": {},
    "dpo": {"loss": (math.log(2), 0.02), "rewards_chosen": NOTHING, "rewards_rejected": NOTHING},
    "kto": {"loss": (0.5, 0.02), "rewards_chosen": NOTHING, "rewards_rejected": NOTHING, "kl_divergence": NOTHING},
    "ppo": {"approx_kl": (0.0, 0.001), "ess": (1.0, 0.001)},
}
"""Of the first train step, while the policy is its own reference: a value, and what rounding may change of it."""


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("dpo", "kto")]


@pytest.mark.parametrize("algorithm", ["sft", "ppo", *SLOW])
def test_every_algorithm_trains_and_continues_an_adapter_in_bf16(algorithm: str, tmp_path: Path) -> None:
    """What is compared with a reference is computed without the adapter's dropout."""
    base = write_family(tmp_path / "base", "llama", torch.bfloat16)
    hyper = replace(ONE_STEP, beta=1.0, lora=replace(LORA, dropout=0.5)) if algorithm in ("dpo", "kto") else ONE_STEP
    engine = serve(load_weights(base, BFLOAT16), None)
    losses: list[float] = []
    before: Cycle | None = None
    for number in range(2):
        logged = examples(algorithm, engine, number)
        adapter = before.adapter if before else None
        cycle, run = trained(base, tmp_path / str(number), "bf16", logged, adapter, algorithm, hyper)
        figures = run.steps[0].metrics
        for name, (expected, rounding) in AT_THE_START[algorithm].items():
            assert figures[name] == pytest.approx(expected, abs=rounding), name
        assert cycle.dtype == BFLOAT16
        assert before is None or cycle.start == before.probe
        assert cycle.probe != cycle.start
        engine = served(base, cycle, tmp_path / "policies", cycle.probe)
        losses.append(figures["loss"])
        before = cycle
    assert algorithm != "sft" or losses[1] < losses[0]


def test_a_policy_is_continued_in_what_it_was_computed_in(tmp_path: Path) -> None:
    """Unless a request says otherwise; without either a CPU computes in fp32."""
    base = write_family(tmp_path / "base", "llama", torch.bfloat16)
    plain = job_spec("sft", base=str(base))
    assert load_policy(plain).dtype == "float32"
    continued = load_policy(replace(plain, dtype="bfloat16"))
    assert (continued.dtype, continued.model.get_base_model().dtype) == ("bfloat16", torch.bfloat16)  # pyright: ignore
    asked = replace(plain, dtype="bfloat16", config=replace(plain.config, compute=Compute(mixed_precision="fp32")))
    assert load_policy(asked).dtype == "float32"

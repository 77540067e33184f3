"""Learning from people on real servers: pairs on top of an adapter, thumbs on top of that, and what is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from peft import AutoPeftModelForSequenceClassification

from ratchet.core.contract.policy_manifest import REWARD_MODEL
from ratchet.core.contract.training import Dataset, Evaluation, SnapshotRef, TrainingConfig, TrainingStatus
from ratchet.core.errors import Rejected
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.policies import STORED, fetch_policy, read_policy
from ratchet.core.stores.policy_files import export_policy
from ratchet.local.engine_local.s3_policies import PolicyLoader
from tests.support.tiny_models import chat_texts, publish_tiny_model, write_tiny_model
from tests.support.toy_preferences import parrot_chats, parrot_labels, parrot_pairs
from tests.support.trainer_runs import write_labels, write_pairs, write_snapshot
from tests.support.trainer_world import NOW, World, store_snapshot, trainer_world, working

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
async def world(shared_settings: SharedSettings, tmp_path: Path) -> AsyncIterator[World]:
    async with trainer_world(shared_settings, tmp_path) as world:
        directory = write_tiny_model(tmp_path / "parrot", chat_texts(parrot_chats()), vocabulary=330)
        base = publish_tiny_model(world.objects, directory, "support", NOW)
        chats = [{"messages": chat, "reward": 1.0} for chat in parrot_chats()]
        snapshot = store_snapshot(world.objects, write_snapshot(tmp_path / "chats.parquet", chats))
        parrots = replace(world, base=base.uri, snapshot=snapshot)
        yield parrots


def pairs_of(world: World, folder: Path) -> SnapshotRef:
    return store_snapshot(world.objects, write_pairs(folder / "pairs.parquet", parrot_pairs()), "pairs")


def labels_of(world: World, folder: Path) -> SnapshotRef:
    return store_snapshot(world.objects, write_labels(folder / "labels.parquet", parrot_labels()), "labels")


def config(world: World, algorithm: str, base: str, snapshot: SnapshotRef, **hyper: Any) -> TrainingConfig:
    dataset = Dataset(source="s3", sample_size=100, snapshot=snapshot)
    plain = world.config(algorithm, **{"lora": None, "learning_rate": 1e-2, **hyper})
    return msgspec.structs.replace(plain, base_model=base, dataset=dataset)


def policy_of(status: TrainingStatus) -> str:
    assert status.status == "completed", status.error
    assert status.artifacts is not None
    return str(status.artifacts.final_checkpoint)


async def test_pairs_then_thumbs_continue_an_adapter_and_leave_it_as_it_was(world: World, tmp_path: Path) -> None:
    async with working(world):
        first = await world.dispatch("sft", world.config(max_steps=4))
        start = policy_of(await world.ended(first.training_job_id))
        manifest = world.objects.get(start)
        from_pairs = config(world, "dpo", start, pairs_of(world, tmp_path), max_steps=40, beta=0.5)
        second = await world.dispatch("dpo", from_pairs, evaluation=Evaluation(holdout_size=0.25))
        preferred = await world.ended(second.training_job_id)
        liked = config(world, "kto", policy_of(preferred), labels_of(world, tmp_path), max_steps=6)
        third = await world.dispatch("kto", liked)
        done = await world.ended(third.training_job_id)
        scored = config(world, "reward_model", world.base, pairs_of(world, tmp_path), max_steps=20)
        fourth = await world.dispatch("reward", scored, evaluation=Evaluation(holdout_size=0.25))
        scores = await world.ended(fourth.training_job_id)

    check_reward_model(world, scores, tmp_path)
    check_dpo(world, preferred, start, tmp_path)
    assert world.objects.get(start) == manifest
    local = fetch_policy(world.objects, start, tmp_path / "again")
    digests = {file.name: file.sha256 for file in local.policy.manifest.files}
    assert {path: digest_of(local.directory / path) for path in digests} == digests

    last = read_policy(world.objects, policy_of(done)).manifest
    assert (last.algorithm, last.parent, last.base_model) == ("kto", policy_of(preferred), world.base)
    assert last.training_samples == len(parrot_labels())
    assert done.metrics is not None
    assert done.metrics.current is not None
    assert done.metrics.current.kl_divergence is not None


def check_dpo(world: World, done: TrainingStatus, start: str, folder: Path) -> None:
    """Check the policy, its status, and its exported files."""
    policy = read_policy(world.objects, policy_of(done))
    assert (policy.manifest.algorithm, policy.manifest.parent) == ("dpo", start)
    assert policy.manifest.base_model == world.base
    assert done.metrics is not None
    assert done.metrics.current is not None
    assert done.metrics.current.margin is not None
    assert done.metrics.current.margin > 0
    assert done.metrics.current.accuracy is not None
    assert done.evaluation_results is not None
    scores = done.evaluation_results.benchmark_scores
    assert scores is not None
    assert scores["holdout_pairs"] == 12
    assert scores["holdout_win_rate"] >= 0.55
    # The engine loads it and finds the log-probabilities of the trainer's probe.
    assert PolicyLoader(world.objects, folder / "engine").load(policy.uri).context
    export_policy(world.objects, policy.uri, folder / "out", policy.digest)
    out = folder / "out"
    effective = json.loads((out / "config.json").read_text())["hyperparameters"]
    assert (effective["beta"], effective["max_steps"], effective["batch_size"]) == (0.5, 40, 8)
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == list(range(1, 41))
    names = {"loss", "accuracy", "margin", "rewards_chosen", "rewards_rejected", "grad_norm", "learning_rate"}
    assert names <= steps[0].keys()
    assert steps[0]["margin"] == pytest.approx(0.0, abs=1e-4)
    card = (out / "README.md").read_text()
    assert "preference pairs learnt from | 36" in card
    assert done.artifacts is not None
    assert world.objects.get(str(done.artifacts.model_card)) == card.encode()
    assert (out / "logs" / "training.log").is_file()
    assert (out / "tokenizer" / "tokenizer.json").is_file()
    assert (out / "model" / "adapter_model.safetensors").is_file()


def check_reward_model(world: World, done: TrainingStatus, folder: Path) -> None:
    """Check that it is stored with its measurements, and that nothing takes it for a policy."""
    stored = read_policy(world.objects, policy_of(done), kinds=STORED)
    assert (stored.manifest.kind, stored.manifest.probe, stored.manifest.base_model) == (REWARD_MODEL, None, world.base)
    assert stored.manifest.has_adapter
    assert done.artifacts is not None
    assert done.artifacts.kind == REWARD_MODEL
    assert done.metrics is not None
    assert done.metrics.current is not None
    assert done.metrics.current.auc is not None
    assert done.evaluation_results is not None
    assert {"holdout_auc", "holdout_accuracy", "holdout_loss"} <= (
        done.evaluation_results.benchmark_scores or {}
    ).keys()
    with pytest.raises(Rejected, match="not a policy"):
        PolicyLoader(world.objects, folder / "engine").load(stored.uri)
    export_policy(world.objects, stored.uri, folder / "rm", stored.digest)
    loaded: Any = AutoPeftModelForSequenceClassification.from_pretrained(folder / "rm" / "model", num_labels=1)
    assert loaded.num_labels == 1


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

"""What an attempt takes and leaves: verified inputs, and manifests that are written last."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from ratchet.core.contract.bundle import Bundle, BundleModel, Instructions
from ratchet.core.contract.policy_manifest import ADAPTER, BUNDLE, MODEL, REWARD_MODEL
from ratchet.core.contract.training import (
    Artifacts,
    CallBudget,
    Evaluation,
    EvaluationResults,
    PromptSearch,
    SnapshotRef,
    TaskFileRef,
)
from ratchet.core.errors import DigestMismatch, Rejected
from ratchet.core.stores.policies import publish_policy
from ratchet.trainer_worker.job import Finished
from ratchet.trainer_worker.s3_artifacts import (
    LOG_BYTES,
    artifacts_of,
    fetch_base,
    fetch_inputs,
    fetch_search,
    hold_checkpoint,
    store_checkpoint,
    store_curves,
    store_policy,
)
from ratchet.trainer_worker.training.checkpoints import CheckpointStore, open_checkpoint
from tests.support.blobs import MemoryBlobs
from tests.support.hostile import DAMAGED_JSON
from tests.support.trainer_inputs import adapter, dispatch, model, model_files, policy
from tests.support.training import request

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def directory(tmp_path: Path) -> Path:
    (tmp_path / "job").mkdir(exist_ok=True)
    return tmp_path / "job"


def test_inputs_are_downloaded_and_named_in_the_job(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    base = model(blobs, tmp_path / "base")
    spec, base_of = fetch_inputs(blobs, dispatch(blobs, base.uri), directory(tmp_path), tmp_path / "models", threads=3)
    assert Path(spec.dataset).read_bytes() == b"rows"
    assert Path(spec.base) == tmp_path / "models" / base.digest
    assert (spec.base_name, base_of.digest) == (base.uri, base.digest)
    assert (spec.attempt, spec.threads) == (2, 3)
    assert (spec.adapter, spec.resume) == (None, None)


def test_an_adapter_is_continued_on_its_own_base(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    base = model(blobs, tmp_path / "base")
    one = adapter(blobs, tmp_path / "adapter", base.uri)
    spec, _ = fetch_inputs(blobs, dispatch(blobs, one.uri), directory(tmp_path), tmp_path / "models", threads=1)
    assert Path(spec.base) == tmp_path / "models" / base.digest
    assert Path(str(spec.adapter)) == tmp_path / "models" / one.digest
    assert spec.base_name == base.uri


def test_an_adapter_on_an_adapter_is_refused(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    one = adapter(blobs, tmp_path / "one", model(blobs, tmp_path / "base").uri)
    two = adapter(blobs, tmp_path / "two", one.uri)
    with pytest.raises(Rejected, match="adapter on an adapter"):
        fetch_base(blobs, two.uri, tmp_path / "models")


def test_a_name_is_left_to_transformers(tmp_path: Path) -> None:
    base = fetch_base(MemoryBlobs(), "org/model-1b", tmp_path)
    assert (base.path, base.name, base.digest) == ("org/model-1b", "org/model-1b", None)


def test_an_adapter_is_continued_only_on_the_weights_that_it_was_made_on(tmp_path: Path) -> None:
    blobs, base = MemoryBlobs(), model_files(tmp_path / "base")
    (base / "model.safetensors").write_text("weights")
    taken = fetch_base(blobs, str(base), tmp_path / "models")
    assert taken.digest is not None
    on_it = adapter(blobs, tmp_path / "adapter", str(base), base_digest=taken.digest)
    assert fetch_base(blobs, on_it.uri, tmp_path / "models").digest == taken.digest
    (base / "model.safetensors").write_text("other weights")
    with pytest.raises(DigestMismatch, match="has other weights here"):
        fetch_base(blobs, on_it.uri, tmp_path / "models")


def test_a_changed_snapshot_is_refused(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    asked = dispatch(blobs, model(blobs, tmp_path / "base").uri)
    snapshot = asked.request.training_config.dataset.snapshot
    assert snapshot is not None
    blobs.blobs[snapshot.uri] += b" "
    with pytest.raises(DigestMismatch):
        fetch_inputs(blobs, asked, directory(tmp_path), tmp_path / "models", threads=1)


@pytest.mark.parametrize("body", DAMAGED_JSON, ids=lambda body: repr(body[:20]))
def test_what_cannot_be_read_is_refused_by_what_it_should_be(tmp_path: Path, body: bytes) -> None:
    blobs = MemoryBlobs()
    stored = blobs.put(body, "any", ".json")
    asked = dispatch(blobs, model(blobs, tmp_path / "base").uri)
    resumed = msgspec.structs.replace(asked, resume_from=stored.uri)
    with pytest.raises(Rejected, match="is not a checkpoint"):
        fetch_inputs(blobs, resumed, directory(tmp_path), tmp_path / "models", threads=1)
    config = asked.request.training_config
    dataset = msgspec.structs.replace(config.dataset, snapshot=SnapshotRef(uri=stored.uri, digest=stored.sha256))
    config = msgspec.structs.replace(config, dataset=dataset)
    given = msgspec.structs.replace(asked, request=msgspec.structs.replace(asked.request, training_config=config))
    with pytest.raises(Rejected, match="is not a snapshot"):
        fetch_inputs(blobs, given, directory(tmp_path), tmp_path / "models", threads=1)


def test_a_dispatch_without_a_snapshot_is_refused(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    asked = dispatch(blobs, model(blobs, tmp_path / "base").uri)
    bare = msgspec.structs.replace(asked, request=request())
    with pytest.raises(Rejected, match="names no snapshot"):
        fetch_inputs(blobs, msgspec.structs.replace(bare), directory(tmp_path), tmp_path / "models", threads=1)


def test_a_stored_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    store = CheckpointStore(tmp_path / "checkpoints", request().training_job_id, 1, "sft")
    saved = store.save(7, -0.5, lambda target: (target / "state.pt").write_bytes(b"state"))  # type: ignore[arg-type, return-value]
    base = model(blobs, tmp_path / "base").uri
    uri = store_checkpoint(blobs, dispatch(blobs, base), saved.directory, 7)
    resumed = dispatch(blobs, base, resume_from=uri)
    spec, _ = fetch_inputs(blobs, resumed, directory(tmp_path), tmp_path / "models", threads=1)
    opened = open_checkpoint(Path(str(spec.resume)), request().training_job_id, "sft")
    assert opened.manifest == saved.manifest
    assert (opened.directory / "state.pt").read_bytes() == b"state"


def test_held_checkpoint_outlives_its_removal_and_a_gone_one_is_not_held(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", request().training_job_id, 1, "sft")
    saved = store.save(7, -0.5, lambda target: (target / "state.pt").write_bytes(b"state"))  # type: ignore[arg-type, return-value]
    job = directory(tmp_path)
    held = hold_checkpoint(saved.directory, job)
    assert held is not None
    (saved.directory / "checkpoint.json").unlink()
    assert hold_checkpoint(saved.directory, job) is None
    shutil.rmtree(saved.directory)
    assert hold_checkpoint(saved.directory, job) is None
    assert open_checkpoint(held, request().training_job_id, "sft").manifest == saved.manifest
    assert list(job.iterdir()) == [held]


def test_the_manifest_tells_how_the_policy_came_to_be(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    base = model(blobs, tmp_path / "base")
    one = adapter(blobs, tmp_path / "adapter", base.uri)
    asked = dispatch(blobs, one.uri)
    result = tmp_path / "job" / "result"
    result.mkdir(parents=True)
    (result / "adapter_model.safetensors").write_bytes(b"weights")
    finished = Finished(
        directory=str(result),
        kind=ADAPTER,
        samples=12,
        metrics={"loss": 0.5},
        peak_memory_gb=1.0,
        final_reward=0.4,
    )
    made = store_policy(blobs, asked, fetch_base(blobs, one.uri, tmp_path / "models"), finished, NOW).manifest
    snapshot = asked.request.training_config.dataset.snapshot
    assert snapshot is not None
    assert (made.base_model, made.base_digest, made.parent) == (base.uri, base.digest, one.uri)
    assert (made.training_job_id, made.attempt, made.dataset_digest) == (asked.training_job_id, 2, snapshot.digest)
    assert (made.training_samples, made.final_reward, made.metrics) == (12, 0.4, {"loss": 0.5})
    assert made.hyperparameters == {"learning_rate": 1e-4, "batch_size": 8}
    assert made.tokenizer_digest is not None


def test_a_policy_carries_its_card_configuration_metrics_log_and_tokenizer(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    base = model(blobs, tmp_path / "base")
    asked = dispatch(blobs, base.uri)
    job = tmp_path / "job"
    result = job / "result"
    result.mkdir(parents=True)
    (result / "adapter_model.safetensors").write_bytes(b"weights")
    (job / "documents").mkdir()
    (job / "documents" / "config.json").write_text('{"algorithm": "dpo"}')
    (job / "documents" / "tokenizer.json").write_text('{"vocab": 1}')
    (job / "metrics.jsonl").write_text('{"step": 1}\n')
    (job / "child.log").write_bytes(b"x" * LOG_BYTES + b"the end")
    finished = Finished(
        directory=str(result),
        kind=ADAPTER,
        samples=12,
        metrics={"loss": 0.5},
        peak_memory_gb=1.0,
        evaluation=EvaluationResults(benchmark_scores={"holdout_win_rate": 0.75}, improvement_over_baseline=0.25),
    )
    stored = store_policy(blobs, asked, fetch_base(blobs, base.uri, tmp_path / "models"), finished, NOW)
    documents = {file.name: blobs.get(file.uri, file.sha256) for file in stored.manifest.documents}
    assert documents.keys() == {"README.md", "config.json", "metrics.jsonl", "tokenizer.json", "training.log"}
    assert documents["metrics.jsonl"] == b'{"step": 1}\n'
    assert len(documents["training.log"]) == LOG_BYTES
    assert documents["training.log"].endswith(b"the end")
    assert [file.name for file in stored.manifest.files] == ["adapter_model.safetensors"]
    card = documents["README.md"].decode()
    snapshot = asked.request.training_config.dataset.snapshot
    assert snapshot is not None
    for fact in (base.uri, base.digest, snapshot.digest, "| trajectories learnt from | 12 |", "| loss | 0.5 |"):
        assert fact in card
    for fact in ("| holdout_win_rate | 0.75 |", "| improvement_over_baseline | 0.25 |", "licence | none given"):
        assert fact in card
    assert "Nothing was held out" not in card
    artifacts = artifacts_of(stored, Artifacts(), None)
    assert blobs.get(str(artifacts.model_card)) == documents["README.md"]


def test_adapter_of_reward_model_names_its_base_and_no_policy_continues_it(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    base = model(blobs, tmp_path / "base")
    result = tmp_path / "job" / "result"
    result.mkdir(parents=True)
    (result / "adapter_config.json").write_text("{}")
    finished = Finished(directory=str(result), kind=REWARD_MODEL, samples=12, metrics={}, peak_memory_gb=1.0)
    scores = store_policy(blobs, dispatch(blobs, base.uri), fetch_base(blobs, base.uri, tmp_path), finished, NOW)
    assert (scores.manifest.base_model, scores.manifest.has_adapter) == (base.uri, True)
    assert scores.manifest.tokenizer_digest is not None
    assert artifacts_of(scores, Artifacts(), None).kind == REWARD_MODEL
    with pytest.raises(Rejected, match="not a policy"):
        fetch_base(blobs, scores.uri, tmp_path / "models")


def test_an_algorithm_gets_only_the_format_that_it_learns_from(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    base = model(blobs, tmp_path / "base").uri
    with pytest.raises(Rejected, match=r"rloo learns from trajectories; the snapshot s3://.* holds pairs"):
        fetch_inputs(blobs, dispatch(blobs, base, format="pairs"), directory(tmp_path), tmp_path / "models", threads=1)


def test_data_of_another_role_is_refused(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    base = model(blobs, tmp_path / "base").uri
    own, _ = fetch_inputs(
        blobs, dispatch(blobs, base, role="support"), directory(tmp_path), tmp_path / "models", threads=1
    )
    assert own.role == "support"
    other = dispatch(blobs, base, role="sales")
    with pytest.raises(Rejected, match=r"the job trains role support; the snapshot s3://.* belongs to role sales"):
        fetch_inputs(blobs, other, directory(tmp_path), tmp_path / "models", threads=1)


@pytest.mark.parametrize("kind", [ADAPTER, BUNDLE])
def test_search_begins_with_what_answers_for_the_role(tmp_path: Path, kind: str) -> None:
    blobs, polite = MemoryBlobs(), Bundle(instructions=Instructions(text="Be polite."))
    served = adapter(blobs, tmp_path / "adapter", "base")
    if kind == BUNDLE:
        served = publish_policy(blobs, msgspec.structs.replace(served.manifest, kind=BUNDLE, files=[], bundle=polite))
    tasks = [blobs.put(content, "blobs", ".jsonl") for content in (b"1", b"2")]
    files = [TaskFileRef(uri=one.uri, sha256=one.sha256) for one in tasks]
    budget = CallBudget(calls=9)
    search = PromptSearch(reflector="openai/large", train_tasks=files[0], validation_tasks=files[1], budget=budget)
    asked = dispatch(blobs, served.uri)
    config = msgspec.structs.replace(asked.request.training_config, algorithm="gepa", prompts=search)
    asked = msgspec.structs.replace(asked, request=msgspec.structs.replace(asked.request, training_config=config))
    given = fetch_search(blobs, asked, directory(tmp_path), "http://gateway")[0].search
    assert given is not None
    weights = Bundle(model=BundleModel(name="support@7-1a2b3c4d", digest=served.digest))
    assert given.start == (polite if kind == BUNDLE else weights)
    assert (given.model, given.composed_by) == ("support@7-1a2b3c4d", served.digest if kind == BUNDLE else None)


def test_an_adapter_of_another_role_is_refused_and_its_base_is_not(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    base = policy(blobs, model_files(tmp_path / "base"), MODEL, "random", "sales").uri
    theirs = adapter(blobs, tmp_path / "adapter", base, "sales").uri
    with pytest.raises(Rejected, match=r"the job trains role support; the adapter s3://.* belongs to role sales"):
        fetch_inputs(blobs, dispatch(blobs, theirs), directory(tmp_path), tmp_path / "models", threads=1)
    _, taken = fetch_inputs(blobs, dispatch(blobs, base), directory(tmp_path), tmp_path / "models", threads=1)
    assert taken.name == base


def test_what_is_held_out_is_what_the_request_asks_for(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    asked = dispatch(blobs, model(blobs, tmp_path / "base").uri)
    held = []
    for evaluation in (None, Evaluation(holdout_size=0.25), Evaluation(enabled=False, holdout_size=0.25)):
        request = msgspec.structs.replace(asked.request, evaluation=evaluation)
        given = msgspec.structs.replace(asked, request=request)
        held.append(fetch_inputs(blobs, given, directory(tmp_path), tmp_path / "models", threads=1)[0].holdout)
    assert held == [0.0, 0.25, 0.0]


def test_a_job_is_judged_as_often_as_its_request_asks_for(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    asked = dispatch(blobs, model(blobs, tmp_path / "base").uri)
    often = []
    for evaluation in (None, Evaluation(holdout_size=0.25, eval_steps=7)):
        request = msgspec.structs.replace(asked.request, evaluation=evaluation)
        given = msgspec.structs.replace(asked, request=request)
        spec = fetch_inputs(blobs, given, directory(tmp_path), tmp_path / "models", threads=1)[0]
        often.append(spec.loop.eval_steps)
    assert often == [None, 7]


def test_curves_are_stored_only_when_there_are_any(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    assert store_curves(blobs, tmp_path) == Artifacts()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    stored = store_curves(blobs, tmp_path)
    assert blobs.get(str(stored.training_curves)) == b'{"step": 1, "loss": 0.5}\n'
    assert b"brain.Event:2" in blobs.get(str(stored.tensorboard_logs))
    assert str(stored.tensorboard_logs).endswith(".tfevents")

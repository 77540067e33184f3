"""What an attempt reads from the object store and writes there: files first, the manifest that names them last."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import msgspec

from ratchet.bus.message import Value, decode
from ratchet.core.contract.bundle import NO_BUNDLE, Bundle, BundleModel
from ratchet.core.contract.local_training import LoopOptions
from ratchet.core.contract.policy_manifest import (
    ADAPTER,
    ADAPTER_CONFIG,
    BUNDLE,
    MODEL,
    TRAINING_LOG,
    ArtifactFile,
    PolicyManifest,
)
from ratchet.core.contract.training import Artifacts, ResourceUsage, TrainingDispatch
from ratchet.core.contract.workflows import PlannerRef
from ratchet.core.datasets.s3_snapshots import decode_manifest
from ratchet.core.errors import Rejected
from ratchet.core.rules.algorithms import ALGORITHMS
from ratchet.core.rules.bundles import model_name
from ratchet.core.rules.training_options import holdout_of
from ratchet.core.stores.base_weights import require_same_weights, weights_digest
from ratchet.core.stores.policies import (
    BlobStore,
    LocalPolicy,
    Policy,
    fetch_policy,
    is_manifest_uri,
    publish_policy,
    read_policy,
    tokenizer_digest,
    upload_files,
)
from ratchet.trainer_worker.job import (
    BUNDLE_FILE,
    CHECKPOINT_MANIFEST,
    DOCUMENTS,
    LOG_FILE,
    METRICS_FILE,
    PLANNER_FILE,
    Finished,
    JobSpec,
    SearchSpec,
)
from ratchet.trainer_worker.model_card import model_card
from ratchet.trainer_worker.tensorboard import event_file

DATASET, RESUME, HELD = "dataset.parquet", "resume", "held"
TRAIN, VALIDATION = "train_tasks.jsonl", "validation_tasks.jsonl"
"""Names inside a job's directory."""
CARD = "README.md"
"""Its name among a policy's documents."""
LOG_BYTES = 1_000_000
"""Only the end of a log is kept: a failure stands there, and a long log is mostly progress."""


class StoredCheckpoint(Value, frozen=True, kw_only=True):
    """Manifest of a checkpoint in the object store."""

    training_job_id: str
    attempt: int
    step: int
    files: list[ArtifactFile]
    kind: str = "checkpoint"


@dataclass(frozen=True, slots=True)
class Base:
    """What a training starts from."""

    path: str
    """Directory, or a name or path for `from_pretrained`."""
    name: str
    """What the policy's manifest calls it."""
    digest: str | None
    """Of its manifest, or of the weights in its directory; None for a name."""
    tokenizer_digest: str | None
    adapter: LocalPolicy | None = None
    """The adapter that is continued."""
    dtype: str | None = None
    """Number format that adapter or model were computed in; None: unknown."""


def fetch_inputs(
    objects: BlobStore, dispatch: TrainingDispatch, directory: Path, models: Path, threads: int
) -> tuple[JobSpec, Base]:
    """Download data, base model, adapter and checkpoint, each verified by its digest: a job, ready for its process.

    Data and adapter are of the job's own role: what a role has learnt stays with it. Every role may use a base model.
    """
    config, role = dispatch.request.training_config, dispatch.request.role
    base = fetch_base(objects, config.base_model, models)
    if base.adapter is not None and base.adapter.policy.manifest.role != role:
        theirs = base.adapter.policy.manifest.role
        raise Rejected(f"the job trains role {role}; the adapter {config.base_model} belongs to role {theirs}")
    compute, evaluation = config.compute, dispatch.request.evaluation
    spec = JobSpec(
        training_job_id=dispatch.training_job_id,
        attempt=dispatch.attempt,
        role=role,
        config=config,
        dataset=str(_fetch_dataset(objects, dispatch, directory)),
        base=base.path,
        base_name=base.name,
        threads=(compute.threads if compute else None) or threads,
        adapter=str(base.adapter.directory) if base.adapter else None,
        dtype=base.dtype,
        resume=_fetch_checkpoint(objects, dispatch, directory),
        holdout=holdout_of(evaluation),
        loop=LoopOptions(eval_steps=evaluation.eval_steps if evaluation else None),
    )
    return spec, base


def fetch_search(objects: BlobStore, dispatch: TrainingDispatch, directory: Path, gateway: str) -> tuple[JobSpec, Base]:
    """Download data, tasks and checkpoint of a search for a bundle, each verified by its digest, and read what serves
    the role: a job, ready for its process. `gateway`: its address."""
    config, role = dispatch.request.training_config, dispatch.request.role
    if config.prompts is None:
        raise Rejected(f"{config.algorithm} searches by tasks, and the request names none")
    served = read_policy(objects, config.base_model) if is_manifest_uri(config.base_model) else None
    if served is not None and served.manifest.role != role:
        raise Rejected(f"the job is of role {role}; the policy {config.base_model} belongs to {served.manifest.role}")
    files: list[str] = []
    for name, file in ((TRAIN, config.prompts.train_tasks), (VALIDATION, config.prompts.validation_tasks)):
        objects.get_file(file.uri, directory / name, file.sha256)
        files.append(str(directory / name))
    spec = JobSpec(
        training_job_id=dispatch.training_job_id,
        attempt=dispatch.attempt,
        role=role,
        config=config,
        dataset=str(_fetch_dataset(objects, dispatch, directory)),
        base="",
        base_name="",
        threads=1,
        resume=_fetch_checkpoint(objects, dispatch, directory),
        search=SearchSpec(
            start=_start_of(served, dispatch.parent),
            train=files[0],
            validation=files[1],
            model=dispatch.parent or role,
            pinned=dispatch.parent is not None,
            gateway=gateway,
            composed_by=served.digest if served is not None and served.manifest.kind == BUNDLE else None,
        ),
    )
    return spec, Base("", "", None, None)


def fetch_planning(
    objects: BlobStore, dispatch: TrainingDispatch, directory: Path, threads: int
) -> tuple[JobSpec, Base]:
    """Download executions and the planner that serves, each verified by its digest: a job, ready for its process."""
    config, role = dispatch.request.training_config, dispatch.request.role
    planner: str | None = None
    if is_manifest_uri(config.base_model):
        served = read_policy(objects, config.base_model).manifest
        if served.role != role:
            raise Rejected(f"the job is of role {role}; the policy {config.base_model} belongs to {served.role}")
        if served.bundle is None or served.bundle.planner is None:
            raise Rejected(f"the policy {config.base_model} plans no workflows: {role} is no role of planners")
        planner = str(directory / PLANNER_FILE)
        objects.get_file(served.bundle.planner.uri, Path(planner), served.bundle.planner.sha256)
    spec = JobSpec(
        training_job_id=dispatch.training_job_id,
        attempt=dispatch.attempt,
        role=role,
        config=config,
        dataset=str(_fetch_dataset(objects, dispatch, directory)),
        base="",
        base_name="",
        threads=threads,
        planner=planner,
    )
    return spec, Base("", "", None, None)


def _start_of(served: Policy | None, name: str | None) -> Bundle:
    """What serves the role as a bundle; weights change nothing but who answers."""
    if served is None:
        return NO_BUNDLE
    if served.manifest.kind == BUNDLE or name is None:
        return served.manifest.bundle or NO_BUNDLE
    return Bundle(model=BundleModel(name=name, digest=served.digest))


def fetch_base(objects: BlobStore, base_model: str, models: Path) -> Base:
    """The base that `base_model` names: a model's manifest, an adapter's manifest (to continue it), or a name or path.

    Raises `DigestMismatch` where an adapter was made on other weights than its base has here.
    """
    if not is_manifest_uri(base_model):
        path = Path(base_model)
        if not path.is_dir():
            return Base(base_model, base_model, None, None)
        return Base(str(path.resolve()), base_model, weights_digest(path, models), tokenizer_digest(path))
    fetched = fetch_policy(objects, base_model, models)
    manifest = fetched.policy.manifest
    if manifest.kind == MODEL:
        digest = tokenizer_digest(fetched.directory)
        return Base(str(fetched.directory), base_model, fetched.policy.digest, digest, dtype=manifest.dtype)
    below = fetch_base(objects, manifest.base_model, models)
    if below.adapter is not None:
        raise Rejected(f"{base_model} is an adapter on an adapter; merge one of them first")
    require_same_weights(below.name, below.digest, manifest.base_digest)
    return replace(below, adapter=fetched, dtype=manifest.dtype)


def hold_checkpoint(checkpoint: Path, job: Path) -> Path | None:
    """Second names for a checkpoint's files in the job's directory, where the training process removes nothing.

    It removes its own as newer checkpoints come, which an upload may outlast. None when it has begun to.
    """
    held = Path(tempfile.mkdtemp(prefix=HELD, dir=job))
    try:
        # Removing begins with the manifest: what is listed with it is whole, and a file that is missing then has gone.
        for path in sorted(checkpoint.iterdir()):
            os.link(path, held / path.name)
        (held / CHECKPOINT_MANIFEST).stat()
    except FileNotFoundError:
        shutil.rmtree(held)
        return None
    return held


def store_checkpoint(objects: BlobStore, dispatch: TrainingDispatch, directory: Path, step: int) -> str:
    """Upload a checkpoint; returns its manifest's uri."""
    files = upload_files(objects, directory)
    stored = StoredCheckpoint(
        training_job_id=dispatch.training_job_id, attempt=dispatch.attempt, step=step, files=files
    )
    return objects.put(msgspec.json.encode(stored), "checkpoints", ".json").uri


def store_policy(
    objects: BlobStore,
    dispatch: TrainingDispatch,
    base: Base,
    finished: Finished,
    now: datetime,
    usage: ResourceUsage | None = None,
) -> Policy:
    """Upload the policy's files and documents, and then the manifest, which makes it visible. A bundle stands in the
    manifest itself.

    `usage`: what the attempt took; only the card tells it, so that the manifest stays a matter of inputs and weights.
    """
    config = dispatch.request.training_config
    directory = Path(finished.directory)
    snapshot = config.dataset.snapshot
    bundle = _stored_bundle(objects, directory) if finished.kind == BUNDLE else None
    is_adapter = finished.kind == ADAPTER or (directory / ADAPTER_CONFIG).is_file()
    manifest = PolicyManifest(
        kind=finished.kind,
        base_model=model_name(bundle) if bundle else base.name if is_adapter else config.base_model,
        base_digest=base.digest,
        files=[] if bundle else upload_files(objects, directory),
        role=dispatch.request.role,
        created_at=now,
        algorithm=config.algorithm,
        training_job_id=dispatch.training_job_id,
        attempt=dispatch.attempt,
        dataset_digest=snapshot.digest if snapshot else None,
        hyperparameters=msgspec.to_builtins(config.hyperparameters),
        training_samples=finished.samples,
        final_reward=finished.final_reward,
        tokenizer_digest=base.tokenizer_digest if is_adapter else tokenizer_digest(directory),
        dtype=finished.dtype,
        probe=finished.probe,
        metrics=finished.metrics,
        parent=base.adapter.policy.uri if base.adapter else None,
        bundle=bundle,
    )
    card = None if bundle else model_card(manifest, finished.evaluation, usage, finished.health_stop)
    documents = gather_documents(directory.parent, card)
    return publish_policy(objects, msgspec.structs.replace(manifest, documents=upload_files(objects, documents)))


def _stored_bundle(objects: BlobStore, directory: Path) -> Bundle:
    """What a training made; the planner's file is stored before the manifest that names it."""
    if not (directory / PLANNER_FILE).is_file():
        return decode((directory / BUNDLE_FILE).read_bytes(), Bundle)
    blob = objects.put_file(directory / PLANNER_FILE, "blobs")
    return Bundle(planner=PlannerRef(uri=blob.uri, sha256=blob.sha256))


def gather_documents(job: Path, card: str | None) -> Path:
    """The folder of a job's documents: what the training process wrote, and the card, metrics and log beside it."""
    documents = job / DOCUMENTS
    documents.mkdir(exist_ok=True)
    if card is not None:
        (documents / CARD).write_text(card)
    if (job / METRICS_FILE).is_file():
        shutil.copyfile(job / METRICS_FILE, documents / METRICS_FILE)
    if (job / LOG_FILE).is_file():
        (documents / TRAINING_LOG).write_bytes((job / LOG_FILE).read_bytes()[-LOG_BYTES:])
    return documents


def store_curves(objects: BlobStore, directory: Path) -> Artifacts:
    """Upload the metrics of all train steps, also as TensorBoard reads them; nothing when no step was done."""
    path = directory / METRICS_FILE
    if not path.is_file() or not path.stat().st_size:
        return Artifacts()
    events = event_file(path.read_bytes(), path.stat().st_mtime)
    return Artifacts(
        training_curves=objects.put_file(path, "metrics", ".jsonl").uri,
        tensorboard_logs=objects.put(events, "metrics", ".tfevents").uri,
    )


def artifacts_of(policy: Policy, curves: Artifacts, checkpoint: str | None) -> Artifacts:
    """What a `completed` status names."""
    return msgspec.structs.replace(
        curves,
        final_checkpoint=policy.uri,
        model_card=next((file.uri for file in policy.manifest.documents if file.name == CARD), None),
        digest=policy.digest,
        kind=policy.manifest.kind,
        checkpoint=checkpoint,
    )


def _fetch_dataset(objects: BlobStore, dispatch: TrainingDispatch, directory: Path) -> Path:
    reference = dispatch.request.training_config.dataset.snapshot
    if reference is None:
        raise Rejected("the dispatch names no snapshot: there is nothing to train on")
    snapshot = decode_manifest(objects.get(reference.uri, reference.digest), reference.uri)
    role = dispatch.request.role
    if snapshot.role != role:
        raise Rejected(f"the job trains role {role}; the snapshot {reference.uri} belongs to role {snapshot.role}")
    algorithm = dispatch.request.training_config.algorithm
    needed = ALGORITHMS[algorithm].learns_from
    if snapshot.format != needed:
        raise Rejected(f"{algorithm} learns from {needed}; the snapshot {reference.uri} holds {snapshot.format}")
    path = directory / DATASET
    objects.get_file(snapshot.parquet.uri, path, snapshot.parquet.sha256)
    return path


def _fetch_checkpoint(objects: BlobStore, dispatch: TrainingDispatch, directory: Path) -> str | None:
    if dispatch.resume_from is None:
        return None
    try:
        stored = decode(objects.get(dispatch.resume_from), StoredCheckpoint)
    except msgspec.DecodeError as error:
        raise Rejected(f"{dispatch.resume_from} is not a checkpoint: {error}") from error
    target = Path(tempfile.mkdtemp(prefix=RESUME, dir=directory))
    for file in stored.files:
        if Path(file.name).name != file.name:
            raise Rejected(f"{dispatch.resume_from} names {file.name!r}, which is not a plain file name")
        objects.get_file(file.uri, target / file.name, file.sha256)
    return str(target)

"""Registering the result of a training job, or a bundle, as the next version of its role."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import msgspec

from ratchet.bus.message import Cause
from ratchet.canary_deployer.domain.rollout import Rollout
from ratchet.core.contract import TrainingStatus
from ratchet.core.contract.bundle import NO_BUNDLE, Bundle, BundleModel
from ratchet.core.contract.policy_manifest import BUNDLE, DEPLOYABLE, MODEL, PolicyManifest
from ratchet.core.contract.state import Job, PolicyStage, PolicyVersion, Route
from ratchet.core.errors import BadRequest, Rejected
from ratchet.core.rules.arms import parse_model, policy_name, version_0
from ratchet.core.rules.bundles import model_name
from ratchet.core.rules.engines import ADAPTERS_ONLY
from ratchet.core.rules.redaction import MAX_DEPTH, redact

LIVE = frozenset({PolicyStage.REGISTERED, PolicyStage.CANARY, PolicyStage.STABLE})
"""Stages of policies that serve, or may."""
PUBLIC = frozenset({"email", "phone"})
"""What redaction takes out of records, and instructions may name: how people reach a team."""


def deployable(status: TrainingStatus) -> bool:
    """Whether a status announces a policy: a completed job with a policy manifest, whose request offers it."""
    artifacts = status.artifacts
    if status.status != "completed" or artifacts is None or not status.offer:
        return False
    return artifacts.kind in DEPLOYABLE and bool(artifacts.final_checkpoint) and bool(artifacts.digest)


def fenced(status: TrainingStatus, job: Job | None) -> bool:
    """Whether the status is that of an attempt which a newer one of the job has replaced."""
    return job is not None and job.attempt > status.attempt


def new_version(
    status: TrainingStatus,
    job: Job | None,
    manifest: PolicyManifest | None,
    version: int,
    now: datetime,
    cause: Cause,
) -> PolicyVersion:
    """The next version of the role; `cause` is the status' own event. Without a readable manifest, what only it holds
    stays unknown."""
    artifacts = status.artifacts
    assert artifacts is not None  # noqa: S101 - `deployable` was asked first
    digest, base_model, parent = artifacts.digest or "", "unknown", None
    if job is not None:
        base_model = job.request.training_config.base_model
        parent = _version_of(job.parent, status.role)
    return PolicyVersion(
        role=status.role,
        version=version,
        name=policy_name(status.role, version, digest),
        digest=digest,
        uri=artifacts.final_checkpoint or "",
        kind=artifacts.kind or "",
        base_model=manifest.base_model if manifest else base_model,
        created_at=manifest.created_at if manifest else now,
        stage=PolicyStage.REGISTERED,
        parent=parent,
        training_job_id=status.training_job_id,
        dataset_digest=status.dataset_digest or (manifest.dataset_digest if manifest else None),
        training_samples=manifest.training_samples if manifest else None,
        final_reward=manifest.final_reward if manifest else None,
        algorithm=(manifest.algorithm if manifest else None) or (job.algorithm if job else None),
        metrics=dict(manifest.metrics) if manifest and manifest.metrics else None,
        cause=cause,
    )


def refused(policy: PolicyVersion, reason: str) -> PolicyVersion:
    """The policy, refused at its registration."""
    return msgspec.structs.replace(policy, stage=PolicyStage.REFUSED, reason=reason)


def unservable(status: TrainingStatus, engine: str | None) -> str | None:
    """Why the role's engine, of this kind, can never hold the policy of a completed job; None where it can."""
    if status.artifacts is None or status.artifacts.kind != MODEL or engine not in ADAPTERS_ONLY:
        return None
    return (
        f"it is a whole model, and the engine of {status.role} ({engine}) holds adapters of its one base model only: "
        "train an adapter (leave full_finetune out), or name an engine_local for the role in RATCHET_ENGINES and start "
        "the rollout of this version again"
    )


def _version_of(parent: str | None, role: str) -> int | None:
    """Version of the policy that a job continued from, if it was one of this role."""
    try:
        model = parse_model(parent) if parent is not None else None
    except ValueError:
        return None
    return model.version if model is not None and model.role == role else None


def as_sent(role: str, now: datetime) -> PolicyVersion:
    """Version 0: calls as agents send them, answered by whatever answers for the role without a policy."""
    policy = version_0(role)
    return PolicyVersion(
        role=role,
        version=policy.version,
        name=policy.name,
        digest=policy.digest,
        uri="",
        kind=BUNDLE,
        base_model="",
        created_at=now,
        stage=PolicyStage.STABLE,
        reason="calls as agents send them",
    )


def engine_name(policy: PolicyVersion) -> str:
    """By what name an engine may hold a policy: of a bundle, the policy that answers."""
    return policy.base_model if policy.kind == BUNDLE else policy.name


def version_of_weights(bundle: Bundle, versions: Sequence[PolicyVersion]) -> int | None:
    """The oldest version with the weights that a bundle names: what they learned from, its lineage has."""
    if bundle.model is None or bundle.model.digest is None:
        return None
    return next((policy.version for policy in versions if engine_name(policy) == bundle.model.name), None)


def completed(bundle: Bundle, stable: Bundle | None) -> Bundle:
    """The bundle; where it does not say who answers, and stable does, stable's model answers."""
    if bundle.model is not None or bundle.planner is not None or stable is None:
        return bundle
    return msgspec.structs.replace(bundle, model=stable.model)


def require_same_purpose(bundle: Bundle, stable: Bundle | None) -> None:
    """Raise `Rejected` for a planner of a role that answers calls, and for what answers calls of a role of planners."""
    if stable is None or stable == NO_BUNDLE or (bundle.planner is None) == (stable.planner is None):
        return
    if bundle.planner is not None:
        raise Rejected("what serves the role answers calls: give planners a role of their own")
    raise Rejected("a planner serves the role: what answers calls needs a role of its own")


def with_weights(bundle: Bundle, policy: PolicyVersion) -> Bundle:
    """The bundle with the weights of a policy in the place of what answers."""
    return msgspec.structs.replace(bundle, model=BundleModel(name=policy.name, digest=policy.digest))


def bundle_manifest(bundle: Bundle, role: str, now: datetime, trained: PolicyManifest | None = None) -> PolicyManifest:
    """The manifest of a bundle; `trained`: that of the training from which its weights come."""
    if trained is None:
        trained = PolicyManifest(kind=BUNDLE, base_model="", files=[], role=role, created_at=now)
    return msgspec.structs.replace(
        trained,
        kind=BUNDLE,
        base_model=model_name(bundle),
        files=[],
        documents=[],  # they describe weights
        base_digest=None,
        tokenizer_digest=None,
        dtype=None,
        probe=None,
        parent=None,
        bundle=bundle,
    )


def named_bundle(policy: PolicyVersion, manifest: PolicyManifest, digest: str, uri: str) -> PolicyVersion:
    """The version with the name and the place of the bundle that it is."""
    name = policy_name(policy.role, policy.version, digest)
    return msgspec.structs.replace(
        policy, name=name, digest=digest, uri=uri, kind=BUNDLE, base_model=manifest.base_model
    )


def why_kept(
    route: Route | None, versions: Sequence[PolicyVersion], rollout: Rollout | None, started: int
) -> str | None:
    """Why a role cannot be removed, and what to do; None where nothing depends on it. `started`: trajectories."""
    if started:
        return f"agents have called it: {started} trajectories have started within a week"
    if rollout is not None and rollout.active:
        end = f"end it with `ratchet rollout rollback {rollout.role}`"
        return f"the rollout of {rollout.candidate.name} is {rollout.state}: {end}"
    if rollout is not None and rollout.outbox:
        return "the last decision about it is not published yet: try again in a moment"
    if route is not None and route.stable is not None and route.stable.version:
        return f"{route.stable.name} serves it"
    trained = next((policy.name for policy in versions if policy.training_job_id is not None), None)
    return f"a training made {trained}" if trained is not None else None


def require_no_secret(bundle: Bundle) -> None:
    """Raise `BadRequest`, which names the place and repeats nothing, where a text of the bundle holds a secret."""
    for place, text in _texts(msgspec.to_builtins(bundle), (), MAX_DEPTH):
        kinds = redact(text).counts.keys() - PUBLIC
        if kinds:
            kind = min(kinds).replace("_", " ")
            raise BadRequest(f"{place} holds what looks like a secret ({kind}): take it out", param=place)


def _texts(value: object, place: tuple[str, ...], depth: int) -> Iterator[tuple[str, str]]:
    """Every text, and where it stands: `instructions.text`, `examples.0.content`. Raises `BadRequest` far inside."""
    if depth < 0:
        raise BadRequest(f"{place[0]} is nested more than {MAX_DEPTH} levels deep", param=place[0])
    if isinstance(value, str):
        yield ".".join(place), value
    elif isinstance(value, Mapping):
        for name, member in value.items():  # pyright: ignore[reportUnknownVariableType] - JSON
            yield from _texts(member, (*place, str(name)), depth - 1)  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(value, Sequence):
        for number, item in enumerate(value):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            yield from _texts(item, (*place, str(number)), depth - 1)

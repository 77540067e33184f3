"""An MLflow server, by its REST API (2.0, which all versions since 1.0 serve): the package itself bounds pyarrow and
importlib-metadata below what Ratchet needs, and brings 620 MB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar
from urllib.parse import quote

import msgspec

from ratchet.core.errors import NotFound
from ratchet.core.service.http_client import AsyncApiClient
from ratchet.extras.trackers.domain import JOB, POLICY, Metric, Run

T = TypeVar("T")

API = "/api/2.0/mlflow"
ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"
PROXIED = "mlflow-artifacts:/"
"""Begins the place of artifacts that the server itself stores; others are stored by MLflow's own clients alone."""
METRICS, PARAMS = 1000, 100
"""Most of them in one request."""


class Pair(msgspec.Struct):
    """A tag, a parameter or an alias."""

    key: str = ""
    value: str = ""


class _Experiment(msgspec.Struct):
    experiment_id: str


class _ExperimentAnswer(msgspec.Struct):
    experiment: _Experiment


class RunInfo(msgspec.Struct):
    """A run as the server knows it."""

    run_id: str
    artifact_uri: str = ""


class RunData(msgspec.Struct):
    """What was recorded of it."""

    tags: list[Pair] = msgspec.field(default_factory=list[Pair])
    params: list[Pair] = msgspec.field(default_factory=list[Pair])


class StoredRun(msgspec.Struct):
    """A run with what was recorded of it."""

    info: RunInfo
    data: RunData = msgspec.field(default_factory=RunData)

    def tag(self, name: str) -> str | None:
        """The value of a tag."""
        return next((tag.value for tag in self.data.tags if tag.key == name), None)


class _RunAnswer(msgspec.Struct):
    run: StoredRun


class _Runs(msgspec.Struct):
    runs: list[StoredRun] = msgspec.field(default_factory=list[StoredRun])


class StoredVersion(msgspec.Struct):
    """A version of a registered model."""

    version: str
    tags: list[Pair] = msgspec.field(default_factory=list[Pair])

    def tag(self, name: str) -> str | None:
        """The value of a tag."""
        return next((tag.value for tag in self.tags if tag.key == name), None)


class _VersionAnswer(msgspec.Struct):
    model_version: StoredVersion


class _Versions(msgspec.Struct):
    model_versions: list[StoredVersion] = msgspec.field(default_factory=list[StoredVersion])


class _Alias(msgspec.Struct):
    alias: str
    version: str


class _Model(msgspec.Struct):
    aliases: list[_Alias] = msgspec.field(default_factory=list[_Alias])


class _ModelAnswer(msgspec.Struct):
    registered_model: _Model


class Mlflow:
    """Experiments, runs and registered models. Raises `Unavailable`, or what the server refuses as our errors."""

    def __init__(self, client: AsyncApiClient) -> None:
        self._client = client

    async def experiment(self, name: str) -> str:
        """Id of the experiment of this name, which is made unless it is there."""
        try:
            answer = await self._client.ask(
                "GET", f"{API}/experiments/get-by-name", _ExperimentAnswer, query={"experiment_name": name}
            )
        except NotFound:
            return (await self._post("experiments/create", _Experiment, {"name": name})).experiment_id
        return answer.experiment.experiment_id

    async def find_run(self, experiment: str, job: str) -> StoredRun | None:
        """The run of a training job; the oldest, should there be two."""
        query = {
            "experiment_ids": [experiment],
            "filter": f"tags.`{JOB}` = '{job}'",
            "order_by": ["attributes.start_time ASC"],
            "max_results": 1,
        }
        return next(iter((await self._post("runs/search", _Runs, query)).runs), None)

    async def create_run(self, experiment: str, run: Run) -> StoredRun:
        """A new run with its tags."""
        body = {
            "experiment_id": experiment,
            "run_name": run.name,
            "start_time": run.started_ms,
            "tags": _pairs(run.tags),
        }
        return (await self._post("runs/create", _RunAnswer, body)).run

    async def update_run(self, run_id: str, run: Run) -> None:
        """State and times of a run."""
        body = {"run_id": run_id, "status": run.status, "end_time": run.ended_ms, "run_name": run.name}
        await self._post("runs/update", msgspec.Raw, body)

    async def log(
        self,
        run_id: str,
        *,
        metrics: Sequence[Metric] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Record figures, parameters and tags. The same figure at the same time and step is recorded once."""
        for part in _parts(_pairs(params or {}), PARAMS):
            await self._post("runs/log-batch", msgspec.Raw, {"run_id": run_id, "params": part})
        points = [{"key": m.key, "value": m.value, "timestamp": m.at_ms, "step": m.step} for m in metrics]
        for part in _parts(points, METRICS):
            await self._post("runs/log-batch", msgspec.Raw, {"run_id": run_id, "metrics": part})
        if tags:  # last, for tags say that the rest was recorded
            await self._post("runs/log-batch", msgspec.Raw, {"run_id": run_id, "tags": _pairs(tags)})

    async def upload(self, info: RunInfo, name: str, content: bytes) -> bool:
        """Store an artifact of a run; False where the server does not store artifacts itself."""
        if not info.artifact_uri.startswith(PROXIED):
            return False
        place = info.artifact_uri.removeprefix(PROXIED).strip("/")
        reply = await self._client.exchange("PUT", f"{ARTIFACTS}/{quote(place)}/{quote(name)}", body=content)
        self._client.content_of(reply)
        return True

    async def versions(self, model: str) -> dict[str, StoredVersion]:
        """The versions of a registered model, which is made unless it is there, by the policy that each stands for."""
        try:
            await self._client.ask("GET", f"{API}/registered-models/get", msgspec.Raw, query={"name": model})
        except NotFound:
            await self._post("registered-models/create", msgspec.Raw, {"name": model})
            return {}
        query = {"filter": f"name='{model}'", "max_results": 10_000}
        answer = await self._client.ask("GET", f"{API}/model-versions/search", _Versions, query=query)
        return {policy: stored for stored in answer.model_versions if (policy := stored.tag(POLICY)) is not None}

    async def create_version(
        self, model: str, source: str, run_id: str | None, tags: Mapping[str, str]
    ) -> StoredVersion:
        """A new version of a registered model."""
        body = {"name": model, "source": source, "tags": _pairs(tags)} | ({"run_id": run_id} if run_id else {})
        return (await self._post("model-versions/create", _VersionAnswer, body)).model_version

    async def tag_version(self, model: str, version: str, tags: Mapping[str, str]) -> None:
        """Set tags of a version."""
        for name, value in tags.items():
            body = {"name": model, "version": version, "key": name, "value": value}
            await self._post("model-versions/set-tag", msgspec.Raw, body)

    async def aliases(self, model: str) -> dict[str, str]:
        """The version behind each alias of a registered model."""
        answer = await self._client.ask("GET", f"{API}/registered-models/get", _ModelAnswer, query={"name": model})
        return {named.alias: named.version for named in answer.registered_model.aliases}

    async def set_alias(self, model: str, alias: str, version: str | None) -> None:
        """Point an alias at a version, or remove it."""
        method, body = "DELETE", {"name": model, "alias": alias}
        if version is not None:
            method, body = "POST", {**body, "version": version}
        await self._client.ask(method, f"{API}/registered-models/alias", msgspec.Raw, body=body)

    async def _post(self, path: str, kind: type[T], body: object) -> T:
        return await self._client.ask("POST", f"{API}/{path}", kind, body=body)


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": name, "value": value} for name, value in values.items()]


def _parts(values: Sequence[T], size: int) -> Iterator[list[T]]:
    items = iter(values)
    while part := list(islice(items, size)):
        yield part

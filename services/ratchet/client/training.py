"""Requests for training: as a message on the bus, or over HTTP while the broker does not answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from pydantic import SecretStr

from ratchet.core.contract import TrainingRequest, named_id
from ratchet.core.contract.http.jobs import JobIn
from ratchet.core.contract.training import Dataset, DatasetFilter, Hyperparameters, TrainingConfig
from ratchet.core.errors import Rejected, Unavailable

if TYPE_CHECKING:
    import httpx

HTTP_S = 10.0
"""Longest wait for one answer."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A server that takes requests for training over HTTP, and the key that it asks for."""

    name: str
    """For errors, such as `the coordinator`."""
    url: str
    api_key: SecretStr | None = None


def request_of(  # noqa: PLR0913 - keywords: the options of a request
    *,
    role: str,
    algorithm: str,
    requester: str,
    fresh_id: str,
    now: datetime,
    base_model: str = "stable",
    samples: int = 1000,
    min_reward: float | None = None,
    sources: Sequence[str] | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
    priority: str = "normal",
    idempotency_key: str | None = None,
) -> TrainingRequest:
    """The request. The same `idempotency_key` names the same job. Raises `Rejected` for a misspelt hyperparameter."""
    unknown = sorted(set(hyperparameters or {}) - set(Hyperparameters.__struct_fields__))
    if unknown:
        raise Rejected(f"no such hyperparameter: {', '.join(unknown)}")
    try:
        chosen = msgspec.convert(dict(hyperparameters or {}), Hyperparameters)
    except msgspec.ValidationError as error:
        raise Rejected(f"hyperparameters: {error}") from error
    query = DatasetFilter(min_reward=min_reward, sources=list(sources) if sources is not None else None)
    return TrainingRequest(
        training_job_id=named_id("job", role, idempotency_key) if idempotency_key else fresh_id,
        timestamp=now,
        requester=requester,
        trigger_reason="manual",
        training_config=TrainingConfig(
            algorithm=algorithm,
            base_model=base_model,
            dataset=Dataset(
                source="clickhouse", sample_size=samples, filter=query if query != DatasetFilter() else None
            ),
            hyperparameters=chosen,
        ),
        role=role,
        priority=priority,
        idempotency_key=idempotency_key,
    )


async def ask_over_http(
    listeners: Sequence[Listener], request: TrainingRequest, transport: httpx.AsyncBaseTransport | None = None
) -> None:
    """Ask the first of the listeners that answers; a job that it already has keeps its id, and is not started twice.

    Raises `Rejected` with the fault of the request, or `Unavailable` with the reasons of all listeners.
    """
    from ratchet.core.service.http_client import AsyncApiClient, Peer, bearer  # noqa: PLC0415 - most agents never ask

    body = JobIn(
        **msgspec.structs.asdict(request.training_config),
        role=request.role,
        priority=request.priority,
        requester=request.requester,
        training_job_id=request.training_job_id,
        idempotency_key=request.idempotency_key,
    )
    reasons: list[str] = []
    errors = {**dict.fromkeys(range(400, 500), Unavailable), **dict.fromkeys((400, 409, 422), Rejected)}
    for listener in listeners:
        key = listener.api_key.get_secret_value() if listener.api_key else None
        peer = Peer(listener.name, listener.url, bearer(key), HTTP_S, errors, "training was refused: {reason}")
        async with AsyncApiClient(peer, transport) as client:
            try:
                client.content_of(await client.exchange("POST", "/v1/jobs", body=body))
            except Unavailable as error:
                reasons.append(str(error))
            else:
                return
    raise Unavailable(f"cannot ask for training: {'; '.join(reasons)}")

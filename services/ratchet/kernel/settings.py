"""Settings that all services share: where the broker, the warehouse and the object store are."""

from __future__ import annotations

from pathlib import Path

from pydantic_settings import BaseSettings, SettingsConfigDict


class KernelSettings(BaseSettings):
    """Read from `RATCHET_*` environment variables."""

    model_config = SettingsConfigDict(env_prefix="RATCHET_", frozen=True)

    nats_url: str = "nats://127.0.0.1:4222"
    """Broker."""
    nats_seed_file: Path | None = None
    """File with this service's NKEY seed; none where the broker asks for no credentials."""
    replicas: int = 1
    """Copies of every stream and bucket: 1 on one machine, 3 in a cluster."""
    clickhouse_url: str = "http://127.0.0.1:8123"
    """ClickHouse's HTTP interface; user and password may stand in the url."""
    clickhouse_database: str = "ratchet"
    """Database that holds our tables."""
    s3_endpoint: str = "http://127.0.0.1:8333"
    """Any S3 endpoint."""
    s3_access_key: str = "ratchet"
    """Access key."""
    s3_secret_key: str = "ratchet-secret"  # noqa: S105 - a default for the loopback-only embedded store
    """Secret key."""
    s3_bucket: str = "ratchet"
    """Bucket for snapshots, adapters and checkpoints."""
    data_dir: Path = Path(".ratchet/data")
    """Local files of this process: caches and spools, nothing that cannot be rebuilt."""
    http_host: str = "127.0.0.1"
    """Address that HTTP servers listen on."""
    health_port: int = 0
    """Port of /healthz, /readyz and /metrics; 0 picks a free one."""
    log_level: str = "info"
    """Lowest level that is logged."""
    shutdown_s: float = 10.0
    """One deadline for the whole ordered shutdown."""

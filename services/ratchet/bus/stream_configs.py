"""What the broker is asked for: the configuration of every stream and bucket of the registry. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

from ratchet.bus.contracts import Contracts
from ratchet.bus.registry import BucketSpec, Stream

BUCKET = "KV_"
"""Begins the name of a bucket's stream."""
DUPLICATES_S = 120.0
"""How long a bucket's stream knows the ids of messages, where its values stay for so long: ADR-8's."""


def stream_configs(contracts: Contracts, replicas: int) -> Iterator[StreamConfig]:
    """All that the broker holds: streams, then those of buckets."""
    for stream in contracts.streams.values():
        yield stream_config(stream, replicas)
    for bucket in contracts.buckets.values():
        yield bucket_config(bucket, replicas, direct=bucket.name in contracts.asked)


def stream_config(stream: Stream, replicas: int) -> StreamConfig:
    """That of a stream."""
    return StreamConfig(
        name=stream.name,
        subjects=list(stream.subjects),
        retention=RetentionPolicy.WORK_QUEUE if stream.retention == "workqueue" else RetentionPolicy.LIMITS,
        discard=DiscardPolicy.NEW if stream.discard == "new" else DiscardPolicy.OLD,
        max_age=stream.max_age_s or 0,
        max_msgs=stream.max_msgs or -1,
        max_bytes=stream.max_bytes or -1,
        duplicate_window=stream.duplicate_window_s,
        storage=StorageType.MEMORY if stream.storage == "memory" else StorageType.FILE,
        num_replicas=replicas,
        allow_atomic=stream.allow_atomic,
        allow_direct=True,
        deny_delete=stream.append_only,
        deny_purge=stream.append_only,
    )


def bucket_config(bucket: BucketSpec, replicas: int, *, direct: bool) -> StreamConfig:
    """That of the stream below a bucket. Source: NATS ADR-8 (JetStream based key-value stores)."""
    return StreamConfig(
        name=f"{BUCKET}{bucket.name}",
        subjects=[f"$KV.{bucket.name}.>"],
        retention=RetentionPolicy.LIMITS,
        discard=DiscardPolicy.NEW,
        max_age=bucket.max_age_s or 0,
        max_bytes=bucket.max_bytes or -1,
        max_msgs_per_subject=bucket.history,
        duplicate_window=min(bucket.max_age_s or DUPLICATES_S, DUPLICATES_S),
        storage=StorageType.FILE,
        num_replicas=replicas,
        allow_direct=direct,
        allow_rollup_hdrs=True,
        allow_msg_ttl=True,
        deny_delete=True,
    )

"""Blobs in S3, named by their sha256. Synchronous: asynchronous callers use a thread."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from ratchet.errors import DigestMismatch, NotFound, ObjectsUnavailable, Rejected
from ratchet.service.files import staged
from ratchet.service.settings import SharedSettings

_MISSING = {"404", "NoSuchKey", "NoSuchBucket", "NotFound"}


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """A stored blob: its `s3://` uri, the sha256 of its bytes (hex) and its size in bytes."""

    uri: str
    sha256: str
    size: int


class Objects:
    """Content-addressed blobs in one bucket. Thread-safe.

    Raises `ObjectsUnavailable` while the store does not answer and `NotFound` for an unknown uri.
    """

    def __init__(self, settings: SharedSettings) -> None:
        self._bucket = settings.s3_bucket
        # boto3 ships no types.
        self._client: Any = boto3.client(  # pyright: ignore[reportUnknownMemberType]
            "s3",
            endpoint_url=settings.s3_endpoint,
            aws_access_key_id=settings.s3_access_key,
            aws_secret_access_key=settings.s3_secret_key,
            region_name="us-east-1",
            config=Config(
                connect_timeout=3,
                read_timeout=60,
                retries={"max_attempts": 3, "mode": "standard"},
                s3={"addressing_style": "path"},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def ensure_bucket(self) -> None:
        """Create the bucket unless it exists; another program may create it at the same time."""
        with _classified(self._bucket):
            names = {bucket["Name"] for bucket in self._client.list_buckets().get("Buckets", [])}
            if self._bucket not in names:
                with suppress(self._client.exceptions.BucketAlreadyOwnedByYou):
                    self._client.create_bucket(Bucket=self._bucket)

    def ping(self) -> None:
        """Raise `ObjectsUnavailable` unless the bucket answers."""
        with _classified(self._bucket):
            self._client.head_bucket(Bucket=self._bucket)

    def put(self, blob: bytes, prefix: str, suffix: str = "") -> ObjectRef:
        """Store `blob` as `<prefix>/<sha256><suffix>`; storing it again changes nothing."""
        digest = hashlib.sha256(blob).hexdigest()
        key = f"{prefix}/{digest}{suffix}"
        with _classified(key):
            self._client.put_object(Bucket=self._bucket, Key=key, Body=blob)
        return ObjectRef(f"s3://{self._bucket}/{key}", digest, len(blob))

    def put_file(self, path: Path, prefix: str, suffix: str = "") -> ObjectRef:
        """Like `put`, from a file that may be larger than memory."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        key = f"{prefix}/{digest}{suffix}"
        with _classified(key):
            self._client.upload_file(str(path), self._bucket, key)
        return ObjectRef(f"s3://{self._bucket}/{key}", digest, path.stat().st_size)

    def get(self, uri: str, sha256: str | None = None) -> bytes:
        """The bytes behind `uri`. Raises `DigestMismatch` unless they hash to `sha256`, when it is given."""
        bucket, key = _split(uri)
        with _classified(uri):
            blob: bytes = self._client.get_object(Bucket=bucket, Key=key)["Body"].read()
        if sha256 is not None and hashlib.sha256(blob).hexdigest() != sha256:
            raise DigestMismatch(f"{uri} does not have sha256 {sha256}")
        return blob

    def get_file(self, uri: str, path: Path, sha256: str) -> None:
        """Download to `path`, which appears only when it is complete and has the right digest."""
        bucket, key = _split(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        with staged(path, durable=False) as partial:
            with _classified(uri):
                self._client.download_file(bucket, key, str(partial))
            with partial.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != sha256:
                raise DigestMismatch(f"{uri} does not have sha256 {sha256}")

    def exists(self, uri: str) -> bool:
        """Whether there is an object behind `uri`."""
        bucket, key = _split(uri)
        try:
            with _classified(uri):
                self._client.head_object(Bucket=bucket, Key=key)
        except NotFound:
            return False
        return True

    def list(self, prefix: str) -> list[str]:
        """Uris of all objects whose key starts with `prefix`, in key order."""
        with _classified(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
            return [f"s3://{self._bucket}/{item['Key']}" for page in pages for item in page.get("Contents", [])]


def _split(uri: str) -> tuple[str, str]:
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise Rejected(f"not an s3 uri: {uri}") from error
    if parts.scheme != "s3" or not parts.netloc or len(parts.path) < 2:
        raise Rejected(f"not an s3 uri: {uri}")
    return parts.netloc, parts.path[1:]


@contextmanager
def _classified(what: str) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in _MISSING:
            raise NotFound(f"no such object: {what}") from error
        raise ObjectsUnavailable(f"object store refused {what}: {error}") from error
    except BotoCoreError as error:
        raise ObjectsUnavailable(f"object store does not answer: {error}") from error

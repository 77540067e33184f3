"""Blobs in S3, named by their sha256. Synchronous: asynchronous callers use a thread."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import boto3
from boto3.exceptions import Boto3Error
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from ratchet.core.errors import DigestMismatch, NotFound, ObjectsUnavailable, Rejected
from ratchet.core.service.files import sha256_of, staged
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.listing import StoredObject

RESENT_AFTER = timedelta(hours=12)
"""A file whose copy in the store is older than this is sent again, which makes the copy new. What collects objects that
nothing names must leave younger ones alone, for their name may be on its way."""

TRASH = "trash/"
"""Prefix of the keys of blobs that were set aside: nothing was found to refer to them. Who reads one takes it back."""
SILENT_S, ATTEMPTS = 60, 3
"""How long a store may be silent, and how often it is asked then; a file whose content breaks off, five times."""
_CLOCK = "clock"
T = TypeVar("T")
_MISSING = {"404", "NoSuchKey", "NoSuchBucket", "NotFound"}
_REFUSALS = frozenset(range(400, 500)) - {408, 409, 429}
"""Statuses by which a store says that a request will never succeed as it is."""
_PASSING = {
    "ExpiredToken",
    "InvalidAccessKeyId",
    "RequestTimeTooSkewed",
    "RequestTimeout",
    "SignatureDoesNotMatch",
}
"""Errors with such a status that say nothing of what was asked: of a connection, a clock, or our own credentials."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """A stored blob: its `s3://` uri, the sha256 of its bytes (hex) and its size in bytes."""

    uri: str
    sha256: str
    size: int


class Objects:
    """Content-addressed blobs in one bucket. Thread-safe.

    A blob that was set aside is still there for readers: the first one takes it back.

    Raises `ObjectsUnavailable` while the store does not answer, or answers what is not S3's, `NotFound` for an unknown
    uri, and `Rejected` for one that names no object of the bucket, or that the store refuses.
    """

    def __init__(self, settings: SharedSettings) -> None:
        self._bucket = settings.s3_bucket
        place = (settings.s3_endpoint, settings.s3_access_key, settings.s3_secret_key)
        self._client = _client_of(*place, connect_s=3, silent_s=SILENT_S, attempts=ATTEMPTS)
        self._pinging = _client_of(*place, connect_s=1, silent_s=1, attempts=1)

    def ensure_bucket(self) -> None:
        """Create the bucket unless it exists; another program may create it at the same time."""
        with _classified(self._bucket, refuses=False):
            names = {bucket["Name"] for bucket in self._client.list_buckets().get("Buckets", [])}
            if self._bucket not in names:
                with suppress(self._client.exceptions.BucketAlreadyOwnedByYou):
                    self._client.create_bucket(Bucket=self._bucket)

    def ping(self) -> None:
        """Raise `ObjectsUnavailable` unless the bucket answers soon: what is asked all the time must not pile up."""
        with _classified(self._bucket, refuses=False):
            self._pinging.head_bucket(Bucket=self._bucket)

    def put(self, blob: bytes, prefix: str, suffix: str = "") -> ObjectRef:
        """Store `blob` as `<prefix>/<sha256><suffix>`; storing it again changes nothing."""
        digest = hashlib.sha256(blob).hexdigest()
        key = f"{prefix}/{digest}{suffix}"
        self.write(blob, key)
        return ObjectRef(f"s3://{self._bucket}/{key}", digest, len(blob))

    def write(self, blob: bytes, key: str) -> None:
        """Store `blob` under a name that is not its digest, over what was there."""
        with _classified(key):
            self._client.put_object(Bucket=self._bucket, Key=key, Body=blob)

    def put_file(self, path: Path, prefix: str, suffix: str = "") -> ObjectRef:
        """Like `put`, from a file that may be larger than memory. What was stored lately is not sent again."""
        digest = sha256_of(path)
        key, size = f"{prefix}/{digest}{suffix}", path.stat().st_size
        with _classified(key):
            if not self._stored_lately(key, size):
                self._client.upload_file(str(path), self._bucket, key)
        return ObjectRef(f"s3://{self._bucket}/{key}", digest, size)

    def _stored_lately(self, key: str, size: int) -> bool:
        """Whether the whole object is there, younger than `RESENT_AFTER` by the store's own clock."""
        head = self._head(self._bucket, key)
        if head is None:
            return False
        try:
            now = parsedate_to_datetime(head["ResponseMetadata"]["HTTPHeaders"]["date"])
        except (KeyError, ValueError):  # a store that does not say what time it is
            return False
        stored_at: datetime = head["LastModified"]
        return head["ContentLength"] == size and now - stored_at < RESENT_AFTER

    def get(self, uri: str, sha256: str | None = None) -> bytes:
        """The bytes behind `uri`. Raises `DigestMismatch` unless they hash to `sha256`, when it is given."""
        blob: bytes = self._read(
            uri, lambda bucket, key: self._client.get_object(Bucket=bucket, Key=key)["Body"].read()
        )
        if sha256 is not None and hashlib.sha256(blob).hexdigest() != sha256:
            raise DigestMismatch(f"{uri} does not have sha256 {sha256}")
        return blob

    def get_part(self, uri: str, begin: int, size: int) -> bytes:
        """`size` bytes of the object from `begin` on, fewer at its end. No digest vouches for a part."""
        span = f"bytes={begin}-{begin + size - 1}"
        part: bytes = self._read(
            uri, lambda bucket, key: self._client.get_object(Bucket=bucket, Key=key, Range=span)["Body"].read()
        )
        return part

    def get_file(self, uri: str, path: Path, sha256: str, size: int | None = None) -> None:
        """Download to `path`, which appears only when it is complete and has the right digest.

        Raises `DigestMismatch`; before anything is downloaded where the object has another `size` than it should.
        """
        if size is not None:
            head = self._read(uri, lambda bucket, key: self._client.head_object(Bucket=bucket, Key=key))
            if (stored := head.get("ContentLength")) != size:
                raise DigestMismatch(f"{uri} has {stored} bytes, its manifest says {size}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with staged(path, durable=False) as partial:
            self._read(uri, lambda bucket, key: self._client.download_file(bucket, key, str(partial)))
            if sha256_of(partial) != sha256:
                raise DigestMismatch(f"{uri} does not have sha256 {sha256}")

    def exists(self, uri: str) -> bool:
        """Whether there is an object behind `uri`."""
        try:
            self._read(uri, lambda bucket, key: self._client.head_object(Bucket=bucket, Key=key))
        except NotFound:
            return False
        return True

    def list(self, prefix: str) -> list[str]:
        """Uris of all objects whose key starts with `prefix`, in key order."""
        return [stored.uri for stored in self.objects(prefix)]

    def find(self, prefix: str) -> list[str]:
        """Uris of all objects whose key starts with `prefix`, in key order; also of those set aside, which `get` takes
        back."""
        listed = self.list(prefix)  # first: what is set aside meanwhile is in the other list
        aside = self.list(TRASH + prefix)
        back = (uri.replace(f"s3://{self._bucket}/{TRASH}", f"s3://{self._bucket}/", 1) for uri in aside)
        return sorted({*listed, *back})

    def objects(self, prefix: str) -> list[StoredObject]:
        """All objects whose key starts with `prefix`, in key order: all of them, or an error."""
        with _classified(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
            return [
                StoredObject(f"s3://{self._bucket}/{item['Key']}", int(item["Size"]), item["LastModified"])
                for page in pages
                for item in page.get("Contents", [])
            ]

    def now(self) -> datetime:
        """The time by the store's clock, by which the ages of objects are known."""
        with _classified(_CLOCK):
            self._client.put_object(Bucket=self._bucket, Key=_CLOCK, Body=b"")
            return self._client.head_object(Bucket=self._bucket, Key=_CLOCK)["LastModified"]

    def remove(self, uri: str) -> None:
        """Remove an object for good; again, it changes nothing."""
        bucket, key = self._split(uri)
        with _classified(uri):
            self._client.delete_object(Bucket=bucket, Key=key)

    def set_aside(self, listed: StoredObject) -> bool:
        """Move a blob to where only who looks for it finds it; False when it was written again since it was listed."""
        bucket, key = self._split(listed.uri)
        head = self._head(bucket, key)
        if head is None or head.get("LastModified") != listed.at:
            return False
        self._copy(bucket, key, TRASH + key)
        with _classified(key):
            self._client.delete_object(Bucket=bucket, Key=key)
        return True

    def aside(self) -> list[StoredObject]:
        """The blobs that were set aside, with the uris that they had, and since when."""
        prefix = f"s3://{self._bucket}/{TRASH}"
        return [
            StoredObject(f"s3://{self._bucket}/{stored.uri.removeprefix(prefix)}", stored.size, stored.at)
            for stored in self.objects(TRASH)
        ]

    def take_back(self, uri: str) -> bool:
        """Put a blob that was set aside where it was; False when it was not. `remove_aside` removes the copy."""
        bucket, key = self._split(uri)
        try:
            self._copy(bucket, TRASH + key, key)
        except NotFound:
            return False
        return True

    def get_aside(self, uri: str) -> bytes:
        """The bytes of a blob that was set aside, which stays so."""
        bucket, key = self._split(uri)
        with _classified(uri):
            return self._client.get_object(Bucket=bucket, Key=TRASH + key)["Body"].read()

    def remove_aside(self, listed: StoredObject) -> bool:
        """Remove for good the copy of a blob that was set aside; False when it was set aside since the listing."""
        bucket, key = self._split(listed.uri)
        head = self._head(bucket, TRASH + key)
        if head is None or head.get("LastModified") != listed.at:
            return False
        with _classified(listed.uri):
            self._client.delete_object(Bucket=bucket, Key=TRASH + key)
        return True

    def _read(self, uri: str, read: Callable[[str, str], T]) -> T:
        """What `read` makes of bucket and key, after the blob was taken back in case it was set aside."""
        bucket, key = self._split(uri)
        try:
            with _classified(uri):
                return read(bucket, key)
        except NotFound:
            if not self.take_back(uri):
                raise
        with _classified(uri):
            return read(bucket, key)

    def _head(self, bucket: str, key: str) -> Mapping[str, Any] | None:
        try:
            with _classified(key):
                return self._client.head_object(Bucket=bucket, Key=key)
        except NotFound:
            return None

    def _copy(self, bucket: str, source: str, target: str) -> None:
        with _classified(source):
            self._client.copy({"Bucket": bucket, "Key": source}, bucket, target)

    def _split(self, uri: str) -> tuple[str, str]:
        """Bucket and key. Raises `Rejected`; of what another bucket holds, nothing is said."""
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        if not uri.startswith("s3://") or _CONTROL.search(uri) or {"", ".", ".."} & {bucket, *key.split("/")}:
            raise Rejected(
                f"not an s3 uri: {uri!r}; it must be s3://{self._bucket}/<key>, and no part of the key empty"
            )
        if bucket != self._bucket:
            raise Rejected(f"{uri} is in another bucket: this installation reads {self._bucket} alone")
        return bucket, key


@lru_cache(maxsize=8)
def _client_of(endpoint: str, key: str, secret: str, *, connect_s: int, silent_s: int, attempts: int) -> Any:
    """The process's client of this kind: making one takes tens of milliseconds, and threads may share it.

    boto3 ships no types.
    """
    return boto3.client(  # pyright: ignore[reportUnknownMemberType]
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        region_name="us-east-1",
        config=Config(
            connect_timeout=connect_s,
            read_timeout=silent_s,
            retries={"total_max_attempts": attempts, "mode": "standard"},
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


@contextmanager
def _classified(what: str, *, refuses: bool = True) -> Iterator[None]:
    """`refuses`: the store may say that the request will never succeed; else such an answer passes, too."""
    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in _MISSING:
            raise NotFound(f"no such object: {what}") from error
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        final = refuses and status in _REFUSALS and code not in _PASSING
        raise (Rejected if final else ObjectsUnavailable)(f"object store refused {what}: {error}") from error
    except BotoCoreError as error:
        raise ObjectsUnavailable(f"object store does not answer: {error}") from error
    except Boto3Error as error:  # of files: what the store said or did while one was sent or fetched
        cause = getattr(error, "last_exception", None) or error
        raise ObjectsUnavailable(f"object store did not take or give all of {what}: {cause}") from error
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        # Of boto3 over an answer that it does not expect, as of a proxy that leads to itself.
        reason = f"{type(error).__name__}: {error}"
        raise ObjectsUnavailable(f"object store answers {what} with what is no answer of S3: {reason}") from error

"""The API keys that a service knows: those of its settings, and those of the bucket `keys`, which it follows.

    keys = known_keys(settings.shared, "rl_coordinator", connect)       # a component of the service
    server = HttpServer(Authentication(app, keys.caller_of), ...)

A key that is created or revoked counts as soon as the broker has said so. While the broker is away the last known keys
count, also after a restart: their hashes lie on disk. A key expires by this machine's clock.

A service is open, every caller may do everything, only while it knows of no key and listens on a loopback address. Once
it has known a key it stays closed: also when that key expires or is revoked, and when the broker loses its data.

What is stored of a key, 256 random bits, is its sha256: a slow hash protects secrets that people choose, and would cost
every call its time. The coordinator alone writes the bucket.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import structlog

from ratchet.bus.clock import utc_now
from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket, Entry
from ratchet.bus.message import decode, mismatch
from ratchet.bus.tasks import Lasting
from ratchet.core.contract.state import KEYS, Key
from ratchet.core.errors import Unavailable
from ratchet.core.rules.access import ANYONE, ID_LENGTH, SERVICE_SCOPES, Caller, caller_with, hash_of, why_unusable
from ratchet.core.service.asgi import Headers
from ratchet.core.service.authentication import LONGEST_KEY, is_token, presented_key, unauthenticated
from ratchet.core.service.files import PRIVATE, write_whole
from ratchet.core.service.settings import SharedSettings, is_loopback

log = structlog.get_logger()

_NO_KEY = "no API key: send `Authorization: Bearer <key>`, or the key as `x-api-key`"
_NO_KEY_YET = (
    "this service asks for an API key and has none yet: give it a first one (RATCHET_KEYS), or let it listen on a"
    " loopback address"
)
_WRONG_KEY = "incorrect API key: this service does not know it"
OWN_PREFIX = "set_"
"""Begins the id of a key of the settings."""
PATIENCE_S = 2.0
"""How long a request waits at most to learn which keys there are."""
_SINCE_EVER = datetime(1970, 1, 1, tzinfo=UTC)


class _OnDisk(msgspec.Struct, frozen=True, kw_only=True):
    """The last known state of the bucket."""

    closed: bool
    keys: dict[str, Key]


class KnownKeys(Lasting):
    """Looks up callers by the keys of their requests."""

    def __init__(  # noqa: PLR0913 - each is another source of keys, or a seam of tests
        self,
        connect: Callable[[], Awaitable[Bus]],
        file: Path,
        *,
        own: Sequence[Key] = (),
        service: Key | None = None,
        is_local: bool,
        now: Callable[[], datetime] = utc_now,
        people: Callable[[bytes], Awaitable[Caller]] | None = None,
    ) -> None:
        """`own`: keys of the settings; `service`: the one of Ratchet's own services, which closes nothing; `is_local`:
        whether only programs of this machine reach the service; `people`: who holds a token, where people sign in."""
        super().__init__()
        self._connect = connect
        self._file = file
        self.own = tuple(own)
        """The keys of the settings."""
        self._service = (service,) if service is not None else ()
        self._is_local = is_local
        self._now = now
        self._stored: dict[str, Key] | None = None
        """By id; None until this process knows what the bucket holds, or held."""
        self._people = people
        self._closed = bool(own) or people is not None
        self._unreadable: dict[str, str] = {}
        self._by_hash: dict[str, tuple[Key, Caller]] = {}
        self._learned = asyncio.Event()
        """Set once `_stored` is known."""
        self._index()

    @property
    def is_open(self) -> bool:
        """Whether every caller may do everything."""
        return self._is_local and self._stored is not None and not self._closed

    async def caller_of(self, headers: Headers) -> Caller:
        """Who sends a request with these headers. Raises `HttpError` (401) without a usable key where one is asked for,
        and `Unavailable` while it is not known whether there are keys."""
        key = None if self.is_open else presented_key(headers)
        known = self._find(key)
        if self._people is not None and known is None and key is not None and is_token(key):
            return await self._people(key)
        if known is None and self._stored is None and not (self._closed and key is None):
            with suppress(TimeoutError):  # a request that comes in the first moment of the service
                await asyncio.wait_for(self._learned.wait(), PATIENCE_S)
            known = self._find(key)
        if self.is_open:
            return ANYONE  # whatever its client is configured with
        if known is None and self._closed and key is None:
            raise unauthenticated(_NO_KEY)
        if known is None and self._stored is None:
            raise Unavailable("the API keys are not known yet: this service waits for the broker; try again")
        if known is None:
            raise unauthenticated(_WRONG_KEY if self._closed else _NO_KEY_YET)
        why = why_unusable(known[0], self._now())
        if why is not None:
            raise unauthenticated(why)
        return known[1]

    async def ready(self) -> str | None:
        """Readiness: None once it is known which keys there are, now or from an earlier run; else the reason."""
        if self._stored is not None or self.own:
            return None
        return "the API keys are not known yet: the service waits for the broker"

    async def check(self) -> str | None:
        """Keys in the bucket that cannot be read, and so open nothing."""
        return "; ".join(f"key {key} cannot be read: {why}" for key, why in sorted(self._unreadable.items())) or None

    async def run(self) -> None:
        """Follow the bucket until stopped."""
        try:
            known = decode(self._file.read_bytes(), _OnDisk)
            self._stored, self._closed = known.keys, self._closed or known.closed
            self._index()
        except FileNotFoundError:
            pass
        except (OSError, msgspec.DecodeError) as error:
            log.warning("the stored keys cannot be read", file=str(self._file), reason=type(error).__name__)
            self._closed = True
        await super().run()

    async def _work(self) -> None:
        bucket: Bucket[msgspec.Raw] = Bucket(await self._connect(), KEYS, msgspec.Raw)
        whole = True
        async for changes in bucket.watch():
            if whole:
                self._stored, self._unreadable, whole = {}, {}, False
            elif not changes:
                continue
            for key_id, entry in changes:
                self._take_over(key_id, entry)
            self._closed = self._closed or bool(self._stored) or bool(self._unreadable)
            self._index()
            # For a start without a broker.
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                content = msgspec.json.encode(_OnDisk(closed=self._closed, keys=self._stored or {}))
                write_whole(self._file, content, mode=PRIVATE)
            except OSError as error:
                log.warning("the keys cannot be stored", file=str(self._file), reason=str(error))

    def _take_over(self, key_id: str, entry: Entry[msgspec.Raw] | None) -> None:
        """An entry that cannot be read is no key: an administrator may have revoked with it what it was before."""
        assert self._stored is not None  # noqa: S101 - `_work` has set it
        self._stored.pop(key_id, None)
        self._unreadable.pop(key_id, None)
        if entry is None:
            return
        try:
            self._stored[key_id] = decode(entry.value, Key)
        except msgspec.DecodeError as error:
            self._unreadable[key_id] = " ".join(mismatch(error))
            log.error("key unreadable", key=key_id, reason=self._unreadable[key_id])

    def _find(self, key: bytes | None) -> tuple[Key, Caller] | None:
        return self._by_hash.get(hash_of(key)) if key is not None and len(key) <= LONGEST_KEY else None

    def _index(self) -> None:
        """Keys of the settings count before those of the bucket."""
        if self._stored is not None:
            self._learned.set()
        keys = [*(self._stored or {}).values(), *self.own, *self._service]
        self._by_hash = {key.hash: (key, caller_with(key)) for key in keys}


def known_keys(
    shared: SharedSettings,
    name: str,
    connect: Callable[[], Awaitable[Bus]],
    own: Iterable[Key] = (),
    service_scopes: Sequence[str] = SERVICE_SCOPES,
) -> KnownKeys:
    """The keys of the service `name`; `own`: further ones of its settings; `service_scopes`: what services may."""
    given = [setting_key(key.key.get_secret_value(), key.name, key.scopes) for key in shared.keys]
    key = shared.service_key
    service = setting_key(key.get_secret_value(), "services", service_scopes) if key is not None else None
    return KnownKeys(
        connect,
        shared.data_dir / name / "keys.json",
        own=[*given, *own],
        service=service,
        is_local=is_loopback(shared.http_host),
        people=_people(shared),
    )


def _people(shared: SharedSettings) -> Callable[[bytes], Awaitable[Caller]] | None:
    if shared.oidc is None:
        return None
    from ratchet.core.service.people import People  # noqa: PLC0415 - its libraries: 10 MB that few services need

    return People(shared.oidc).caller_of


def setting_key(key: str, name: str, scopes: Sequence[str]) -> Key:
    """A key of the settings. Its id follows from the key, so that all services and later starts have the same."""
    digest = hashlib.sha256(b"ratchet key id\0" + key.encode()).hexdigest()
    return Key(
        key_id=f"{OWN_PREFIX}{digest[:ID_LENGTH]}",
        name=name,
        hash=hash_of(key.encode()),
        scopes=tuple(scopes),
        created_at=_SINCE_EVER,
        created_by="settings",
    )

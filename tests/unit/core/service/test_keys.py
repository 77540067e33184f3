"""The keys that a service knows, and who calls: by every usual header, with every wrong one, open, closed and alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from pydantic import SecretStr, ValidationError

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.bus.testing import FakeBroker, FakeClock, connect, eventually
from ratchet.core.contract.state import KEYS, Key
from ratchet.core.errors import Unavailable
from ratchet.core.rules.access import ANYONE, Caller, hash_of
from ratchet.core.service.asgi import Headers
from ratchet.core.service.authentication import LONGEST_KEY, presented_key
from ratchet.core.service.keys import KnownKeys, known_keys, setting_key
from ratchet.core.service.problems import HttpError
from ratchet.core.service.settings import SharedSettings
from tests.support.fake_bus import fake_broker
from tests.support.messages import AT
from tests.support.running import running

CLOCK = FakeClock(AT)
"""It stands still."""
CHALLENGE = (b"www-authenticate", b"Bearer")
OWN = setting_key("k1", "agents", ["infer:*"])


def stored(secret: str, *, number: int = 0, **members: object) -> Key:
    given = {
        "key_id": f"key_000000000{number}",
        "name": "ci",
        "hash": hash_of(secret.encode()),
        "scopes": ["train"],
        "created_at": AT,
        "created_by": "ops",
    }
    return msgspec.convert({**given, **members}, Key)


def bearer(key: str) -> Headers:
    return [(b"authorization", b"Bearer " + key.encode())]


Connect = Callable[[], Awaitable[Bus]]


def to(broker: FakeBroker | None) -> Connect:
    """Connects to a broker; None: to one that never answers."""

    async def connected() -> Bus:
        if broker is None:
            await asyncio.Event().wait()
        return await connect(broker or fake_broker())

    return connected


@asynccontextmanager
async def following(
    folder: Path, broker: FakeBroker | None, *, is_local: bool = True, own: Sequence[Key] = (), at: FakeClock = CLOCK
) -> AsyncIterator[KnownKeys]:
    keys = KnownKeys(to(broker), folder / "keys.json", own=own, is_local=is_local, now=at)
    async with running(keys):
        yield keys


async def status_of(keys: KnownKeys, headers: Headers) -> int:
    """200 for a known caller, else the status of the refusal."""
    try:
        await keys.caller_of(headers)
    except HttpError as error:
        return error.status if (error.code, error.headers) == ("invalid_api_key", [CHALLENGE]) else 0
    return 200


async def until(keys: KnownKeys, headers: Headers, status: int) -> None:
    await eventually(lambda: _is(keys, headers, status))


async def _is(keys: KnownKeys, headers: Headers, status: int) -> bool:
    return await status_of(keys, headers) == status


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer k1")],
        [(b"authorization", b"bearer k1")],
        [(b"authorization", b"BEARER   k1 ")],
        [(b"x-api-key", b"k1")],
        [(b"api-key", b" k1\t")],
        [(b"authorization", b"Bearer k1"), (b"x-api-key", b"k1"), (b"api-key", b"k1")],
        [(b"authorization", b"Bearer k1"), (b"authorization", b"Bearer k1")],
        [(b"authorization", b"Bearer "), (b"x-api-key", b"k1")],
    ],
)
def test_every_usual_header_carries_the_key(headers: Headers) -> None:
    assert presented_key(headers) == b"k1"


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"k1")],
        [(b"authorization", b"Basic azE6azE=")],
        [(b"authorization", b"Bearer\tk1")],
        [(b"authorization", b"Token k1")],
        [(b"authorization", b"Bearer k1"), (b"x-api-key", b"k2")],
        [(b"authorization", b"Bearer k1"), (b"authorization", b"Bearer k2")],
        [(b"x-api-key", b"k1"), (b"authorization", b"k1")],
        [(b"authorization", b"\xff\xfe \x00")],
    ],
)
def test_a_header_without_a_key_and_keys_that_differ_are_refused(headers: Headers) -> None:
    with pytest.raises(HttpError) as refusal:
        presented_key(headers)
    assert (refusal.value.status, refusal.value.code) == (401, "invalid_api_key")
    assert "k1" not in str(refusal.value)


def test_an_empty_header_is_no_key() -> None:
    for header in [(b"authorization", b""), (b"authorization", b"Bearer"), (b"x-api-key", b" ")]:
        assert presented_key([header]) is None
    assert presented_key([]) is None


async def test_hostile_keys_are_refused_without_being_echoed(tmp_path: Path) -> None:
    async with following(tmp_path, fake_broker(), own=(OWN,)) as keys:
        assert await status_of(keys, bearer("k1")) == 200
        for key in ("köy", "k1\x00", "k" * 60_000, "k1 k1", "k" * LONGEST_KEY, "K1", "k", "' OR 1=1"):
            assert await status_of(keys, bearer(key)) == 401
        with pytest.raises(HttpError) as refusal:
            await keys.caller_of(bearer("a-secret"))
        assert "a-secret" not in str(refusal.value)


async def test_a_key_counts_as_soon_as_it_is_created_and_not_once_it_is_revoked(tmp_path: Path) -> None:
    broker = fake_broker()
    bucket = Bucket(await connect(broker), KEYS, Key)
    async with following(tmp_path, broker, own=(OWN,)) as keys:
        assert await status_of(keys, bearer("fresh")) == 401
        await bucket.put("key_0000000000", stored("fresh"))
        await until(keys, bearer("fresh"), 200)
        caller = await keys.caller_of(bearer("fresh"))
        assert (caller.key_id, caller.name, caller.scopes) == ("key_0000000000", "ci", {"train"})
        await bucket.put("key_0000000000", stored("fresh", revoked_at=AT))
        await until(keys, bearer("fresh"), 401)
        await bucket.put("key_0000000001", stored("other", number=1))
        await until(keys, bearer("other"), 200)
        await bucket.delete("key_0000000001")
        await until(keys, bearer("other"), 401)


async def test_a_key_expires_by_the_services_own_clock_also_without_a_broker(tmp_path: Path) -> None:
    broker, clock = fake_broker(), FakeClock(AT)
    await Bucket(await connect(broker), KEYS, Key).put("k", stored("short", expires_at=AT + timedelta(seconds=60)))
    async with following(tmp_path, broker, at=clock) as keys:
        await until(keys, bearer("short"), 200)
        broker.go_away()
        clock.advance(59.9)
        assert await status_of(keys, bearer("short")) == 200
        clock.advance(0.1)
        assert await status_of(keys, bearer("short")) == 401


async def test_a_service_is_open_until_it_knows_a_key_and_never_again(tmp_path: Path) -> None:
    broker = fake_broker()
    bucket = Bucket(await connect(broker), KEYS, Key)
    async with following(tmp_path, broker) as keys:
        for headers in ([], bearer("anything"), [(b"authorization", b"bare")], [(b"x-api-key", b"\xff" * 60_000)]):
            assert await keys.caller_of(headers) is ANYONE
        await bucket.put("key_0000000000", stored("first", revoked_at=AT))
        await until(keys, [], 401)
        await bucket.delete("key_0000000000")
        await bucket.put("key_0000000001", stored("second", number=1))
        await until(keys, bearer("second"), 200)
        await bucket.delete("key_0000000001")
        await until(keys, bearer("second"), 401)
    async with following(tmp_path, fake_broker()) as keys:  # the broker has lost its data
        await until(keys, [], 401)
        assert not keys.is_open


async def test_beyond_loopback_a_service_without_keys_lets_no_caller_in(tmp_path: Path) -> None:
    async with following(tmp_path, fake_broker(), is_local=False) as keys:
        with pytest.raises(HttpError, match="RATCHET_KEYS"):
            await keys.caller_of([])
        with pytest.raises(HttpError, match="RATCHET_KEYS"):
            await keys.caller_of(bearer("k1"))


async def test_known_keys_count_without_a_broker_and_no_secret_is_on_disk(tmp_path: Path) -> None:
    broker = fake_broker()
    bucket = Bucket(await connect(broker), KEYS, Key)
    await bucket.put("key_0000000000", stored("good"))
    await bucket.put("key_0000000001", stored("bad", number=1, revoked_at=AT))
    async with following(tmp_path, broker) as keys:
        await until(keys, bearer("good"), 200)
    file = tmp_path / "keys.json"
    assert b"good" not in file.read_bytes()
    assert file.stat().st_mode & 0o077 == 0
    async with following(tmp_path, None) as keys:
        await until(keys, bearer("good"), 200)
        assert [await status_of(keys, bearer("bad")), await status_of(keys, [])] == [401, 401]
        assert await keys.ready() is None


async def test_while_it_is_unknown_whether_there_are_keys_no_caller_is_let_in(tmp_path: Path) -> None:
    async with following(tmp_path, None) as keys:
        assert "not known yet" in (await keys.ready() or "")
        asked = (keys.caller_of([]), keys.caller_of(bearer("k1")))
        refused = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(one) for one in refused] == [Unavailable, Unavailable]


async def test_a_request_in_the_first_moment_waits_for_the_keys(tmp_path: Path) -> None:
    answered = asyncio.Event()

    async def connected() -> Bus:
        await answered.wait()
        return await connect(fake_broker())

    keys = KnownKeys(connected, tmp_path / "keys.json", is_local=True)
    async with running(keys):
        asked = asyncio.create_task(keys.caller_of([]))
        await asyncio.sleep(0)
        assert not asked.done()
        answered.set()
        assert await asked is ANYONE


async def test_a_damaged_file_closes_the_service_until_it_has_read_the_bucket(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_bytes(b'{"closed": false, "keys": {"x"')
    broker = fake_broker()
    await Bucket(await connect(broker), KEYS, Key).put("key_0000000000", stored("good"))
    async with following(tmp_path, broker) as keys:
        await until(keys, bearer("good"), 200)
        assert not keys.is_open


async def test_an_unreadable_entry_opens_nothing_is_reported_and_hides_no_other(tmp_path: Path) -> None:
    broker = fake_broker()
    bus = await connect(broker)
    await Bucket(bus, KEYS, Key).put("key_0000000000", stored("good"))
    await Bucket(bus, KEYS, Key).put("key_0000000001", stored("worse", number=1))
    async with following(tmp_path, broker) as keys:
        await until(keys, bearer("worse"), 200)
        raw = msgspec.Raw(b'{"key_id": "key_0000000001", "expires_at": "2026-01-01T00:00:00"}')
        await Bucket(bus, KEYS, msgspec.Raw).put("key_0000000001", raw)
        await until(keys, bearer("worse"), 401)
        assert await status_of(keys, bearer("good")) == 200
        assert "key_0000000001" in (await keys.check() or "")


async def test_key_of_services_closes_nothing_and_settings_give_any_scope(tmp_path: Path) -> None:
    connected = to(fake_broker())
    alone = SharedSettings(data_dir=tmp_path / "a", service_key=SecretStr("ours-0123456789a"))
    given = SharedSettings.model_validate(
        {
            "data_dir": tmp_path / "b",
            "service_key": "ours-0123456789a",
            "keys": '[{"name": "operators", "key": "first-0123456789", "scopes": ["admin"]}]',
        }
    )
    async with running(open_keys := known_keys(alone, "x", connected)):
        assert await open_keys.caller_of([]) is ANYONE
    async with running(closed := known_keys(given, "x", connected)):
        admin, service = [await closed.caller_of(bearer(key)) for key in ("first-0123456789", "ours-0123456789a")]
        assert (admin.name, admin.scopes) == ("operators", {"admin"})
        assert service.scopes == {"infer:*", "feedback:*", "view"}
        assert await status_of(closed, bearer("other")) == 401
        assert isinstance(service, Caller)
    assert "first" not in repr(given)
    assert "ours" not in repr(given)


@pytest.mark.parametrize("settings", [{"service_key": "k" * 15}, {"keys": '[{"name": "a", "key": "k", "scopes": []}]'}])
def test_key_of_the_settings_that_is_too_short_to_be_random_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="a key has at least 16 characters"):
        SharedSettings.model_validate(settings)


def test_a_key_of_the_settings_has_the_same_id_in_every_service() -> None:
    assert setting_key("k1", "a", []).key_id == OWN.key_id != setting_key("k2", "a", []).key_id

"""The embedded stores with a storage key: what was written is in none of their files, and a new key reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random

import nats
import pytest

from ratchet.core.errors import ConfigError
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.objects import Objects
from ratchet.core.stores.warehouse import Warehouse
from ratchet.local.local_stack.ports import free_ports
from ratchet.local.local_stack.servers import clickhouse_server, clickhouse_url, nats_server, seaweed_s3
from ratchet.local.local_stack.storage_keys import MARK_FILE, VARIABLE, StorageKeys
from tests.support.servers import ACCESS_KEY, PASSWORD, SECRET_KEY, running

NEEDLE = "planted-words-of-a-person-" * 40
OLD, NEW = StorageKeys(("o" * 32,)), StorageKeys(("n" * 32, "o" * 32))


NOISE = Random(1).randbytes(4000)
"""What a store cannot compress."""


def holding(folder: Path, words: bytes = NEEDLE[:26].encode()) -> list[str]:
    """The files in which these words stand."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path.name for path in files if words in path.read_bytes()]


@asynccontextmanager
async def broker(folder: Path, keys: StorageKeys) -> AsyncIterator[nats.js.JetStreamContext]:
    port, monitor = free_ports(2)
    with running(nats_server(folder / "nats", port, monitor, keys=keys), folder) as server:
        client = await nats.connect(server.url)
        yield client.jetstream()
        await client.close()


@asynccontextmanager
async def warehouse(folder: Path, keys: StorageKeys) -> AsyncIterator[Warehouse]:
    (port,) = free_ports(1)
    program = clickhouse_server(folder / "clickhouse", port, PASSWORD, keys)
    with running(program, folder):
        settings = SharedSettings(clickhouse_url=clickhouse_url(port, PASSWORD), clickhouse_database="words")
        connected = await Warehouse.connect(settings)
        yield connected
        await connected.close()


@contextmanager
def objects(folder: Path, *, encrypts: bool = True) -> Iterator[Objects]:
    (port,) = free_ports(1)
    with running(seaweed_s3(folder / "s3", port, ACCESS_KEY, SECRET_KEY, encrypts=encrypts), folder) as server:
        store = Objects(SharedSettings(s3_endpoint=server.url, s3_access_key=ACCESS_KEY, s3_secret_key=SECRET_KEY))
        store.ensure_bucket()
        yield store


async def test_messages_are_encrypted_and_read_with_the_next_key(tmp_path: Path) -> None:
    async with broker(tmp_path, OLD) as stream:
        await stream.add_stream(name="WORDS", subjects=["words"])
        await stream.publish("words", NEEDLE.encode())
    assert holding(tmp_path) == []
    for keys in (NEW, StorageKeys(NEW.secrets[:1])):
        async with broker(tmp_path, keys) as stream:
            assert (await stream.get_msg("WORDS", 1)).data == NEEDLE.encode()


async def test_rows_are_encrypted_and_read_with_the_next_key(tmp_path: Path) -> None:
    async with warehouse(tmp_path, OLD) as words:
        await words.command("CREATE TABLE t (word String) ENGINE = MergeTree ORDER BY word")
        await words.insert("t", [{"word": NEEDLE}], token=None)
    assert holding(tmp_path) == []
    async with warehouse(tmp_path, NEW) as words:
        await words.insert("t", [{"word": f"another of {NEEDLE}"}], token=None)
        assert len(await words.rows("SELECT word FROM t")) == 2
        await words.command("OPTIMIZE TABLE t FINAL")
    assert holding(tmp_path) == []


def test_objects_are_encrypted(tmp_path: Path) -> None:
    with objects(tmp_path) as store:
        ref = store.put(NOISE, "blobs")
    assert holding(tmp_path, NOISE[:32]) == []
    with objects(tmp_path) as store:
        assert store.get(ref.uri, ref.sha256) == NOISE


@pytest.mark.slow
async def test_without_a_key_the_same_words_stand_in_the_files(tmp_path: Path) -> None:
    async with broker(tmp_path, StorageKeys()) as stream, warehouse(tmp_path, StorageKeys()) as words:
        await stream.add_stream(name="WORDS", subjects=["words"])
        await stream.publish("words", NEEDLE.encode())
        await words.command("CREATE TABLE t (word String) ENGINE = MergeTree ORDER BY word")
        await words.insert("t", [{"word": NEEDLE}], token=None)
    with objects(tmp_path, encrypts=False) as store:
        store.put(NOISE, "blobs")
    assert holding(tmp_path / "nats")
    assert holding(tmp_path / "clickhouse")
    assert holding(tmp_path / "s3", NOISE[:32])


def test_a_store_gets_no_key_that_it_was_not_written_with(tmp_path: Path) -> None:
    keys = StorageKeys.of_environment({VARIABLE: f"{'o' * 32}"})
    keys.require_fit(tmp_path)
    StorageKeys().require_fit(tmp_path)
    (tmp_path / "nats" / "jetstream").mkdir(parents=True)
    StorageKeys().require_fit(tmp_path)
    with pytest.raises(ConfigError, match="holds what is not encrypted"):
        keys.require_fit(tmp_path)
    (tmp_path / MARK_FILE).write_text(keys.mark())
    keys.require_fit(tmp_path)
    StorageKeys.of_environment({VARIABLE: f"{'n' * 32},{'o' * 32}"}).require_fit(tmp_path)
    for wrong, words in ((StorageKeys(), "is not set"), (StorageKeys(("x" * 32,)), "is another one")):
        with pytest.raises(ConfigError, match=words):
            wrong.require_fit(tmp_path)
    with pytest.raises(ConfigError, match="32 letters"):
        StorageKeys.of_environment({VARIABLE: "short"})

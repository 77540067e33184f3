"""Which adapters the plugin gives to vLLM, what it refuses and in which words, and how its cache stays bounded."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from ratchet.core.contract.policy_manifest import REWARD_MODEL
from ratchet.core.errors import DigestMismatch, NotFound, ObjectsUnavailable, Rejected, Unavailable
from ratchet.core.rules.arms import policy_name
from ratchet.core.stores.base_weights import stored_weights_digest, weights_digest
from ratchet.core.stores.failed_names import REMEMBERED_S, FailedNames
from ratchet.core.stores.policies import Policy
from ratchet.extras.vllm_plugin.adapters import Adapters, Engine
from tests.support.blobs import MemoryBlobs
from tests.support.peft_adapters import digest_of_tokenizer, publish_adapter, publish_model, write_model


class Store(MemoryBlobs):
    """Counts look-ups, and may be away."""

    away = False
    looked_up = 0

    def find(self, prefix: str) -> list[str]:
        self.looked_up += 1
        if self.away:
            raise ObjectsUnavailable("object store does not answer")
        return super().find(prefix)


@dataclass
class World:
    """A store with a model, and a vLLM that serves it."""

    folder: Path
    store: Store = field(default_factory=Store)
    capacity: int = 1_000_000

    def __post_init__(self) -> None:
        self.model = write_model(self.folder / "base")
        self.base = publish_model(self.store, self.model)
        self.engine = Engine("base", self.model, self.model, max_rank=16)
        self.adapters = self.another()

    def another(self) -> Adapters:
        """A replica beside the first one, with the same cache."""
        return Adapters(self.store, self.folder / "cache", self.capacity)

    def publish(self, **changes: Any) -> Policy:
        return publish_adapter(self.store, self.base, self.folder / "adapter", **changes)

    def hold(self, policy: Policy, **engine: Any) -> Any:
        return self.adapters.hold(named(policy), replace(self.engine, **engine))

    def kept(self) -> set[str]:
        return {one.name for one in (self.folder / "cache").iterdir() if one.is_dir() and one.name != ".locks"}


def named(policy: Policy) -> str:
    return policy_name("support", 3, policy.digest)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_an_adapter_is_laid_out_as_peft_reads_it(world: World) -> None:
    policy = world.publish()
    directory = world.hold(policy).directory
    assert (directory / "adapter_model.safetensors").read_bytes() == b"adapter"
    assert (directory / "adapter_config.json").is_file()
    assert directory.is_absolute()


def test_digest_of_a_stored_model_is_that_of_a_directory_with_its_files(world: World) -> None:
    assert stored_weights_digest(world.base.manifest.files) == weights_digest(world.model, world.folder)
    assert stored_weights_digest([]) is None


Change = Callable[[World], tuple[Policy, dict[str, Any]]]
REFUSED: dict[str, tuple[Change, str]] = {
    "rank": (lambda w: (w.publish(config={"r": 64}), {}), "its rank is 64, and this vLLM runs with --max-lora-rank 16"),
    "rank of one module": (lambda w: (w.publish(config={"rank_pattern": {"q_proj": 32}}), {}), "its rank is 32"),
    "another base": (
        lambda w: (w.publish(), {"directory": write_model(w.folder / "other", b"other weights")}),
        "the base model base has other weights here",
    ),
    "a base by name": (
        lambda w: (w.publish(base_model="org/one", base_digest=None), {"base": "org/two"}),
        "it was trained on org/one, and this vLLM serves org/two",
    ),
    "a base that cannot be compared": (
        lambda w: (w.publish(), {"directory": None}),
        "no digest of weights shows that they are the same",
    ),
    "another tokenizer": (lambda w: (w.publish(tokenizer_digest="0" * 64), {}), "another tokenizer or chat template"),
    "a whole model": (lambda w: (w.base, {}), "it is a whole model, and vLLM serves adapters"),
    "a reward model": (lambda w: (w.publish(kind=REWARD_MODEL), {}), "which no engine holds"),
    "no adapters": (lambda w: (w.publish(), {"takes_adapters": False}), "started without --enable-lora"),
    "another form": (
        lambda w: (w.publish(files=w.base.manifest.files), {}),
        "it has no adapter_config.json and no",
    ),
    "no LoRA": (lambda w: (w.publish(config={"peft_type": "IA3"}), {}), "its adapter is IA3"),
    "no rank": (lambda w: (w.publish(config={"r": None}), {}), "is not PEFT's of a LoRA"),
    "vLLM's own rules": (lambda w: (w.publish(), {"check": _no_dora}), "vLLM does not take it: no DoRA"),
    "too large": (lambda w: (w.publish(weights=bytes(2_000_000)), {}), "are more than RATCHET_VLLM_CACHE_BYTES"),
}


def _no_dora(_: Path) -> None:
    raise ValueError("no DoRA")


@pytest.mark.parametrize("case", REFUSED)
def test_what_this_vllm_cannot_serve_is_refused_in_words(world: World, case: str) -> None:
    change, words = REFUSED[case]
    policy, engine = change(world)
    with pytest.raises((Rejected, DigestMismatch), match=named(policy)) as refused:
        world.hold(policy, **engine)
    assert words in str(refused.value)


def test_base_fits_by_its_weights_and_by_its_name_where_they_are_unknown(world: World) -> None:
    by_weights = world.publish(base_model="/elsewhere/base", base_digest=weights_digest(world.model, world.folder))
    world.hold(by_weights)
    by_name = world.publish(base_model="org/one", base_digest=None)
    world.hold(by_name, base="org/one", directory=None)
    by_path = world.publish(base_model=str(world.model), base_digest=None)
    world.hold(by_path, base=f"{world.model}/../base")
    with_tokenizer = world.publish(tokenizer_digest=digest_of_tokenizer(world.model))
    world.hold(with_tokenizer)
    assert world.kept() == {one.digest for one in (by_weights, by_name, by_path, with_tokenizer)}


@pytest.mark.parametrize("damage", ["missing", "damaged", "cut"])
def test_a_half_written_policy_is_refused_and_leaves_nothing_behind(world: World, damage: str) -> None:
    policy = world.publish()
    weights = next(one for one in policy.manifest.files if one.name == "adapter_model.safetensors")
    whole = world.store.blobs.pop(weights.uri)
    if damage != "missing":
        world.store.blobs[weights.uri] = whole[:-1] if damage == "cut" else b"damaged"
    with pytest.raises((Rejected, DigestMismatch), match=named(policy)):
        world.hold(policy)
    assert world.kept() == set()


def test_absent_name_is_not_found_and_not_looked_up_again_at_once(world: World) -> None:
    world.store.looked_up = 0
    for _ in range(3):
        with pytest.raises(NotFound):
            world.adapters.hold("support@1-00000000", world.engine)
    assert world.store.looked_up == 1


def test_a_failure_is_remembered_for_a_while() -> None:
    clock = [0.0]
    names = FailedNames(lambda: clock[0])
    names.remember("one", NotFound("no one"))
    with pytest.raises(NotFound):
        names.raise_remembered("one")
    names.raise_remembered("other")
    clock[0] = REMEMBERED_S
    names.raise_remembered("one")


def test_a_store_that_is_away_is_asked_again(world: World) -> None:
    policy = world.publish()
    world.store.away = True
    with pytest.raises(Unavailable):
        world.hold(policy)
    world.store.away = False
    assert world.hold(policy)


def test_a_disk_that_takes_nothing_is_unavailable(world: World) -> None:
    policy = world.publish()
    (world.folder / "cache").write_text("a file in the place of the cache")
    with pytest.raises(Unavailable, match="cannot be kept or checked on this disk"):
        world.hold(policy)


def test_of_adapters_that_nothing_uses_least_recently_used_ones_make_room(world: World) -> None:
    first, second, third, fourth = (world.publish(weights=bytes([n]) * 300_000) for n in range(4))
    world.hold(first).release()
    world.hold(second).release()
    held = world.hold(third)
    _used(world, first, 3), _used(world, second, 2), _used(world, third, 1)
    world.hold(first).release()
    world.hold(fourth).release()
    assert world.kept() == {first.digest, third.digest, fourth.digest}
    held.release()


def _used(world: World, policy: Policy, ago_s: float) -> None:
    then = time.time() - ago_s
    os.utime(world.folder / "cache" / ".locks" / policy.digest, (then, then))


def test_adapter_in_use_by_another_replica_stays_in_a_full_cache(world: World) -> None:
    held = [world.another().hold(named(world.publish(weights=bytes([n]) * 300_000)), world.engine) for n in range(3)]
    more = world.publish(weights=bytes([9]) * 300_000)
    with pytest.raises(Unavailable, match="all 3 adapters in the cache are in use"):
        world.hold(more)
    held[1].release()
    last = world.hold(more)
    assert [one.directory.exists() for one in (*held, last)] == [True, False, True, True]


def test_two_uses_of_one_adapter_both_have_to_end(world: World) -> None:
    policy = world.publish(weights=bytes(600_000))
    one, other = world.hold(policy), world.another().hold(named(policy), world.engine)
    one.release()
    more = world.publish(weights=bytes([1]) * 600_000)
    with pytest.raises(Unavailable):
        world.hold(more)
    other.release()
    world.hold(more)


def test_what_a_crash_left_is_fetched_anew_or_removed(world: World) -> None:
    policy = world.publish()
    world.hold(policy).release()
    (world.folder / "cache" / policy.digest / "adapter_model.safetensors").write_bytes(b"")  # the machine lost power
    assert (world.hold(policy).directory / "adapter_model.safetensors").read_bytes() == b"adapter"
    for name in (".1a2b3c4d-gone", ".5e6f7a8b-made", ".of-others"):
        (world.folder / "cache" / name).mkdir()
    made = (world.folder / "cache" / ".locks" / f"5e6f7a8b{'0' * 56}.making").open("w")  # another replica's
    fcntl.flock(made, fcntl.LOCK_EX)
    half_deleted = world.publish(weights=b"another")
    (world.folder / "cache" / half_deleted.digest).mkdir()
    assert (world.hold(half_deleted).directory / "adapter_model.safetensors").read_bytes() == b"another"
    assert {one for one in world.kept() if one.startswith(".")} == {".5e6f7a8b-made", ".of-others"}
    made.close()


class SmallDisk(Store):
    """A store whose downloads fill the disk while one of the adapters that are kept is there."""

    def __init__(self, cache: Path) -> None:
        super().__init__()
        self.cache = cache
        self.full_with = ""

    def get_file(self, uri: str, path: Path, sha256: str, size: int | None = None) -> None:
        if self.full_with and (self.cache / self.full_with).exists():
            raise OSError(errno.ENOSPC, "no space left")
        super().get_file(uri, path, sha256, size)


def test_on_disk_that_is_full_before_cache_is_what_nothing_uses_makes_room(tmp_path: Path) -> None:
    store = SmallDisk(tmp_path / "cache")
    world = World(tmp_path, store)
    unused, used, more = (world.publish(weights=bytes([n]) * 100) for n in range(3))
    world.hold(unused).release()
    held = world.hold(used)
    store.full_with = unused.digest
    world.hold(more).release()
    assert world.kept() == {used.digest, more.digest}

    store.full_with = used.digest
    with pytest.raises(Unavailable, match="no space left"):
        world.hold(unused)
    held.release()
    world.hold(unused)


class Slow(Store):
    """A store whose downloads wait for leave."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.may_end = Event(), Event()
        self.downloads: list[str] = []

    def get_file(self, uri: str, path: Path, sha256: str, size: int | None = None) -> None:
        self.downloads.append(uri)
        self.began.set()
        assert self.may_end.wait(30)
        super().get_file(uri, path, sha256, size)


def test_one_of_the_replicas_that_see_a_damage_repairs_it_for_all(tmp_path: Path) -> None:
    store = Slow()
    store.may_end.set()
    world = World(tmp_path, store)
    policy = world.publish()
    world.hold(policy).release()
    (tmp_path / "cache" / policy.digest / "adapter_model.safetensors").write_bytes(b"")
    store.downloads.clear()
    store.began.clear()
    store.may_end.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(world.hold, policy)
        assert store.began.wait(30)
        second = pool.submit(world.another().hold, named(policy), world.engine)
        wait([second], timeout=0.2)  # time in which it could begin a repair of its own
        store.may_end.set()
        held = [first.result(30), second.result(30)]
    assert len(store.downloads) == len(set(store.downloads))
    assert [(one.directory / "adapter_model.safetensors").read_bytes() for one in held] == [b"adapter"] * 2


def test_lock_leaves_with_its_adapter_and_what_was_never_made_leaves_none(world: World) -> None:
    first, second, third = (world.publish(weights=bytes([n]) * 600_000) for n in range(3))
    world.hold(first).release()
    weights = next(file for file in second.manifest.files if file.name == "adapter_model.safetensors")
    damaged = world.store.blobs.pop(weights.uri)
    with pytest.raises(Rejected):
        world.hold(second)
    held = world.hold(third)
    assert {one.name.removesuffix(".making") for one in (world.folder / "cache" / ".locks").iterdir()} == {third.digest}
    held.release()
    world.store.blobs[weights.uri] = damaged
    assert world.another().hold(named(second), world.engine).directory.is_dir()


def test_waiter_for_a_deleted_adapter_holds_the_new_one(world: World) -> None:
    policy = world.publish(weights=bytes(600_000))
    world.hold(policy).release()
    path = world.folder / "cache" / ".locks" / policy.digest
    with ThreadPoolExecutor(1) as pool:
        with path.open() as deleting:
            fcntl.flock(deleting, fcntl.LOCK_EX)
            waiting = pool.submit(world.hold, policy)
            wait([waiting], timeout=0.2)  # time in which it could open the lock that is about to leave
            path.unlink()
        held = waiting.result(30)
    with pytest.raises(Unavailable, match="in use"):
        world.another().hold(named(world.publish(weights=bytes([1]) * 600_000)), world.engine)
    assert held.directory.is_dir()


@pytest.mark.parametrize(("hub", "offline"), [("0", "1"), ("1", ""), (None, "1")])
def test_vllm_asks_a_hub_only_when_it_is_switched_on(tmp_path: Path, hub: str | None, offline: str) -> None:
    program = tmp_path / "vllm"
    program.write_text('#!/bin/sh\necho "$HF_HUB_OFFLINE|$*"\nexit 7\n')
    program.chmod(0o755)
    known = {name: value for name, value in os.environ.items() if name not in ("RATCHET_HUB", "HF_HUB_OFFLINE")}
    environment = {**known, "PATH": f"{tmp_path}:{os.environ['PATH']}"} | ({"RATCHET_HUB": hub} if hub else {})
    command = [sys.executable, "-m", "ratchet.extras.vllm_plugin", "serve", "org/base", "--port=8000"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.returncode) == (f"{offline}|serve org/base --port=8000\n", 7), ended.stderr

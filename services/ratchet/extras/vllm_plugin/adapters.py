"""The adapter that a policy's name stands for, if this vLLM can serve it: the plugin's work, without vLLM's classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from ratchet.core.contract.policy_manifest import ADAPTER, ADAPTER_CONFIG, PolicyManifest
from ratchet.core.errors import DigestMismatch, NotFound, Rejected, Unavailable
from ratchet.core.stores.base_weights import require_same_weights, stored_weights_digest, weights_digest
from ratchet.core.stores.failed_names import FailedNames
from ratchet.core.stores.policies import (
    BlobStore,
    Policy,
    find_policy,
    is_manifest_uri,
    ranks_of,
    read_policy,
    tokenizer_digest,
)
from ratchet.extras.vllm_plugin.cache import AdapterCache, Held

WEIGHTS = "adapter_model.safetensors"
"""What vLLM reads beside `ADAPTER_CONFIG`."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What a vLLM was started with, as far as an adapter has to fit it."""

    base: str
    """The name or path of its model."""
    directory: Path | None
    """Where the files of the model are; None: not on this disk."""
    tokenizer: Path | None = None
    """Where those of its tokenizer are."""
    takes_adapters: bool = True
    """It runs with `--enable-lora`."""
    max_rank: int | None = None
    """Its `--max-lora-rank`; None: unknown."""
    check: Callable[[Path], None] = lambda _: None
    """vLLM's own rules of an adapter in a directory. Raises `ValueError`."""


class Adapters:
    """Finds, checks and holds adapters. Its method blocks; threads may call it together."""

    def __init__(self, objects: BlobStore, directory: Path, capacity: int) -> None:
        """`directory`: of at most `capacity` bytes of adapters."""
        self._objects = objects
        self._directory = directory
        self._cache = AdapterCache(objects, directory, capacity)
        self._failed = FailedNames()
        self._failing = Lock()
        self._reading_base = Lock()

    def hold(self, name: str, engine: Engine) -> Held:
        """The adapter called `name`, laid out as PEFT and verified. Its user releases it.

        Raises `NotFound` for a name that the store does not hold, `Rejected` or `DigestMismatch` with the reason why
        this vLLM cannot serve it, and `Unavailable`.
        """
        with self._failing:
            self._failed.raise_remembered(name)
        try:
            policy = find_policy(self._objects, name)
            try:
                return self._held(policy, engine)
            except NotFound as error:
                raise Rejected(f"{name} lacks a file: {error}") from error
            except (DigestMismatch, Rejected) as error:
                raise type(error)(f"{name} cannot be served here: {error}") from error
        except (NotFound, Rejected, DigestMismatch) as failure:
            with self._failing:
                self._failed.remember(name, failure)
            raise
        except OSError as error:
            raise Unavailable(f"{name} cannot be kept or checked on this disk: {error}") from error

    def _held(self, policy: Policy, engine: Engine) -> Held:
        manifest = policy.manifest
        if manifest.kind != ADAPTER:
            raise Rejected("it is a whole model, and vLLM serves adapters on the one model that it was started with")
        if not engine.takes_adapters:
            raise Rejected("this vLLM was started without --enable-lora")
        missing = {ADAPTER_CONFIG, WEIGHTS} - {file.name for file in manifest.files}
        if missing:
            raise Rejected(f"it is not in PEFT's form: it has no {' and no '.join(sorted(missing))}")
        self._require_base(manifest, engine)
        held = self._cache.hold(policy)
        try:
            require_form(held.directory, engine)
        except BaseException:
            held.release()
            raise
        return held

    def _require_base(self, manifest: PolicyManifest, engine: Engine) -> None:
        """Raise `Rejected` or `DigestMismatch` unless vLLM's model is the one that the adapter was trained on."""
        expected = manifest.base_digest
        if is_manifest_uri(manifest.base_model):
            expected = stored_weights_digest(
                read_policy(self._objects, manifest.base_model, manifest.base_digest).manifest.files
            )
        actual = None
        if expected is not None and engine.directory is not None:
            with self._reading_base:  # seconds for each gigabyte, once: the digests are remembered beside the adapters
                actual = weights_digest(engine.directory, self._directory)
        named, own = manifest.base_model, engine.base
        is_same = named == own or (Path(named).is_dir() and Path(named).resolve() == Path(own).resolve())
        if (expected is None or actual is None) and not is_same:
            raise Rejected(
                f"it was trained on {_short(manifest.base_model)}, and this vLLM serves {_short(engine.base)}; no"
                " digest of weights shows that they are the same"
            )
        require_same_weights(_short(engine.base), actual, expected)
        tokenizer = tokenizer_digest(engine.tokenizer) if engine.tokenizer is not None else None
        if None not in (tokenizer, manifest.tokenizer_digest) and tokenizer != manifest.tokenizer_digest:
            raise Rejected("it was trained with another tokenizer or chat template than this vLLM's model has")


def require_form(directory: Path, engine: Engine) -> None:
    """Raise `Rejected` unless vLLM loads the adapter in `directory`: it would not say why it does not."""
    ranks = ranks_of(directory)
    if engine.max_rank is not None and max(ranks) > engine.max_rank:
        raise Rejected(f"its rank is {max(ranks)}, and this vLLM runs with --max-lora-rank {engine.max_rank}")
    try:
        engine.check(directory)
    except (ValueError, TypeError) as error:
        raise Rejected(f"vLLM does not take it: {error}") from error


def _short(model: str) -> str:
    """A name as it is, of a path or uri the last part: vLLM cuts paths out of what it answers."""
    return Path(model).name if model.startswith(("/", "s3://", ".")) else model

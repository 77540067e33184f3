"""vLLM's side of the plugin: it asks `Resolver` for adapters that it does not know, and tells `Facts` how it runs.

vLLM passes a resolver the name of its model alone. Its other plugins of the front-end process get its configuration:
loggers of statistics. `Facts` is one, and logs nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from fastapi import HTTPException  # pyright: ignore[reportMissingImports]
from vllm.lora.peft_helper import PEFTHelper  # pyright: ignore[reportMissingImports] - of vLLM's own environment
from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]
from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry  # pyright: ignore[reportMissingImports]
from vllm.v1.metrics.loggers import AggregateStatLoggerBase  # pyright: ignore[reportMissingImports]

from ratchet.core.errors import ConfigError, DigestMismatch, NotFound, Rejected, Unavailable
from ratchet.core.rules.engines import LOADS_BUSY, MOST_LOADS, POLICY_REFUSED
from ratchet.core.stores.policies import is_policy_name
from ratchet.extras.vllm_plugin.adapters import Adapters, Engine
from ratchet.extras.vllm_plugin.cache import Held

NAME = "ratchet"
"""The resolver's name in vLLM."""

log = logging.getLogger("vllm.ratchet")  # below vLLM's own logger: its handlers, its level


class HeldRequest(LoRARequest, weakref=True):  # pyright: ignore - its base is unknown here
    """An adapter that vLLM holds: while any part of it does, its directory stays. vLLM reads it again when it has
    dropped the adapter from its own memory."""


class Resolver(LoRAResolver):  # pyright: ignore[reportUntypedBaseClass]
    """Adapters by the names of policies, each downloaded when vLLM first hears of it."""

    def __init__(self, make_adapters: Callable[[], Adapters]) -> None:
        """`make_adapters` is called by the first look-up: vLLM registers plugins in processes that never have one."""
        self._adapters = cache(make_adapters)
        self._making = Lock()
        self._waiting = 0
        self.engine: Engine | None = None
        """How vLLM runs, since it is ready."""

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> Any:
        """None for a name that is no policy's, or not in the store: vLLM answers 404, or asks another resolver.

        Raises `HTTPException`: a failed load would be "found but could not be loaded" to vLLM, without the reason.
        """
        if not is_policy_name(lora_name):
            return None
        began = time.monotonic()
        if self._waiting >= MOST_LOADS:
            raise HTTPException(503, LOADS_BUSY)
        try:
            held = await self._hold(lora_name, self.engine or engine_of(base_model_name))
        except NotFound as error:
            log.info("Ratchet: %s", error)
            return None
        except (Rejected, DigestMismatch) as error:
            log.warning("Ratchet refuses a policy: %s", error)
            raise HTTPException(POLICY_REFUSED, str(error)) from error
        except (Unavailable, ConfigError) as error:
            log.warning("Ratchet cannot load %s: %s", lora_name, error)
            raise HTTPException(503, f"{lora_name} cannot be loaded now: {error}") from error
        request = HeldRequest(lora_name=lora_name, lora_int_id=1, lora_path=str(held.directory))  # vLLM sets the id
        weakref.finalize(request, held.release)
        log.info("Ratchet: %s is verified after %.3f s, in %s", lora_name, time.monotonic() - began, held.directory)
        return request

    async def _hold(self, name: str, engine: Engine) -> Held:
        """In a thread. A caller that goes away leaves nothing held."""
        self._waiting += 1
        holding = asyncio.ensure_future(asyncio.to_thread(self._held, name, engine))

        def ended(_: asyncio.Future[Held]) -> None:
            self._waiting -= 1

        holding.add_done_callback(ended)
        try:
            return await asyncio.shield(holding)
        except asyncio.CancelledError:
            holding.add_done_callback(_give_back)
            raise

    def _held(self, name: str, engine: Engine) -> Held:
        with self._making:
            adapters = self._adapters()
        return adapters.hold(name, engine)


class Facts(AggregateStatLoggerBase):  # pyright: ignore[reportUntypedBaseClass]
    """Tells the resolver how vLLM runs."""

    def __init__(self, vllm_config: Any, engine_indexes: list[int]) -> None:  # noqa: ARG002
        """`vllm_config` is vLLM's `VllmConfig`."""
        if NAME in LoRAResolverRegistry.get_supported_resolvers():
            LoRAResolverRegistry.get_resolver(NAME).engine = described(vllm_config)

    def record(self, *_: object, **__: object) -> None:
        """Nothing."""

    def log_engine_initialized(self) -> None:
        """Nothing."""


def register(make_adapters: Callable[[], Adapters]) -> None:
    """Make vLLM ask for the names of policies."""
    LoRAResolverRegistry.register_resolver(NAME, Resolver(make_adapters))


def described(vllm_config: Any) -> Engine:
    """The `Engine` that vLLM's configuration stands for."""
    model, lora = vllm_config.model_config, vllm_config.lora_config

    def check(directory: Path) -> None:
        PEFTHelper.from_local_dir(str(directory), model.max_model_len).validate_legal(lora)

    return Engine(
        base=model.model,
        directory=directory_of(model.model, model.revision),
        tokenizer=directory_of(model.tokenizer, model.tokenizer_revision),
        takes_adapters=lora is not None,
        max_rank=lora.max_lora_rank if lora is not None else None,
        check=check,
    )


def engine_of(model: str) -> Engine:
    """What the name of its model alone says about a vLLM."""
    return Engine(model, directory_of(model, None))


def directory_of(model: str, revision: str | None) -> Path | None:
    """Where the files of a model are: its own directory, or the hub's cache."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - only names need it

    try:
        return Path(snapshot_download(model, revision=revision, local_files_only=True))
    except (OSError, ValueError):
        return None


def _give_back(holding: asyncio.Future[Held]) -> None:
    if not holding.cancelled() and holding.exception() is None:
        holding.result().release()

"""The local engine put together.

HTTP API (raw ASGI) -> handlers -> registry of policies in memory
                           |-> torch thread: running batch per policy, prefix cache
                           |-> loader thread: object store -> digest -> merge -> probe
"""

from __future__ import annotations

import asyncio
import gc
import secrets
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from ratchet.bus.clock import utc_now
from ratchet.engine_local.settings import Settings
from ratchet.errors import MissingExtra
from ratchet.service.asgi import JsonApi
from ratchet.service.http import HttpServer
from ratchet.service.runtime import App
from ratchet.stores.objects import Objects


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[App]:
    """The engine's components. Raises `MissingExtra` without torch and transformers."""
    try:
        from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415

        from ratchet.engine_local.handlers import Engine  # noqa: PLC0415 - only here, so that its absence is explained
        from ratchet.engine_local.registry import Registry  # noqa: PLC0415
        from ratchet.engine_local.s3_policies import PolicyLoader  # noqa: PLC0415
        from ratchet.engine_local.torch_worker import Limits, TorchWorker  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtra("engine", "the local engine") from error
    disable_progress_bar()
    gc.freeze()  # torch's and transformers' objects live as long as the process: collections need not look at them
    limits = Limits(settings.max_rows, settings.prefill_tokens, settings.prefix_tokens, settings.linger_s)
    worker = TorchWorker(limits, secrets.randbits(63) if settings.seed is None else settings.seed, settings.threads)
    loader = PolicyLoader(Objects(settings.shared), settings.shared.data_dir / "models")
    registry = Registry(settings.resident_policies, worker.forget)
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="loader") as loading:
            engine = Engine(settings, worker, registry, loader.load, loading, utc_now)
            api = JsonApi(engine.route, settings.body_limit, cancel_on_disconnect=True)
            server = HttpServer(api, settings.shared.http_host, settings.port, hosts=settings.shared.allowed_hosts)
            yield App("engine_local", [server], {"torch_thread": worker.check})
    finally:
        await asyncio.to_thread(worker.close)

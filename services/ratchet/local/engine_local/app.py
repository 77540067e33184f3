"""The local engine put together.

HTTP API (raw ASGI) -> handlers -> resolver: a policy's name -> registry of policies in memory
                           |-> torch thread: running batch per policy, prefix cache
                           |-> loader thread: object store -> digest -> merge -> probe
                           |-> grammar thread: process that compiles what answers must follow
                           |-> reward thread: object store -> digest -> score of a conversation
"""

from __future__ import annotations

import asyncio
import gc
import secrets
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

from ratchet.bus.clock import utc_now
from ratchet.core.errors import MissingExtra
from ratchet.core.service.asgi import JsonApi
from ratchet.core.service.http import HttpServer
from ratchet.core.service.runtime import App, Periodic
from ratchet.core.service.same_site import Sites
from ratchet.core.stores.objects import Objects
from ratchet.local.engine_local.settings import BODY_LIMIT, LINGER_S, MAX_ROWS, PREFILL_TOKENS, THREADS, Settings

OBSERVE_S = 1.0
"""Time between looks at how busy the engine is with each policy."""


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[App]:
    """The engine's components. Raises `MissingExtra` without torch and transformers."""
    try:
        from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415

        from ratchet.core.grammars.compiler import Compiler  # noqa: PLC0415
        from ratchet.local.engine_local.generation import Generations  # noqa: PLC0415
        from ratchet.local.engine_local.grammars import Grammars  # noqa: PLC0415
        from ratchet.local.engine_local.handlers import Engine  # noqa: PLC0415 - only here, so that its absence is explained
        from ratchet.local.engine_local.registry import Registry  # noqa: PLC0415
        from ratchet.local.engine_local.resolving import Resolver  # noqa: PLC0415
        from ratchet.local.engine_local.reward_models import RewardModels  # noqa: PLC0415
        from ratchet.local.engine_local.s3_policies import PolicyLoader  # noqa: PLC0415
        from ratchet.local.engine_local.torch_worker import Limits, LoadReport, TorchWorker  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtra("engine", "the local engine") from error
    disable_progress_bar()
    gc.freeze()  # torch's and transformers' objects live as long as the process: collections need not look at them
    limits = Limits(MAX_ROWS, PREFILL_TOKENS, settings.prefix_tokens, LINGER_S)
    seed = secrets.randbits(63)  # of requests that bring none
    worker = TorchWorker(limits, seed, asyncio.get_running_loop().call_soon_threadsafe, THREADS)
    objects, models = Objects(settings.shared), settings.shared.data_dir / "models"
    loader, reward_models = PolicyLoader(objects, models), RewardModels(objects, models, utc_now)
    registry = Registry(settings.resident_policies, worker.forget, most_bytes=settings.resident_bytes)
    grammars = Grammars(Compiler())
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="loader") as loading:
            load = partial(asyncio.get_running_loop().run_in_executor, loading, loader.load)
            resolver = Resolver(registry, partial(asyncio.to_thread, loader.find), load, utc_now)
            engine = Engine(Generations(worker.submit), registry, resolver, grammars, utc_now, settings.api_key)
            engine.serve("POST", "/classify", reward_models.classify)
            load_report = Periodic(OBSERVE_S, LoadReport(registry, worker.load_of).observe, "load")
            api = JsonApi(engine.route, BODY_LIMIT, cancel_on_disconnect=True)
            server = HttpServer(
                api,
                settings.shared.http_host,
                settings.port,
                sites=Sites(settings.shared.allowed_hosts),
                tls_file=settings.shared.tls_file,
            )
            yield App("engine_local", [load_report, server], {"torch_thread": worker.check})
    finally:
        await asyncio.to_thread(grammars.close)
        await asyncio.to_thread(reward_models.close)
        await asyncio.to_thread(worker.close)

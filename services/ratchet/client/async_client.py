"""The client for asyncio agents."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import structlog

from ratchet.bus.clock import utc_now
from ratchet.bus.connection import Bus, Patience
from ratchet.bus.nats_client import read_seed
from ratchet.bus.outbox import QUEUE_BYTES, Outbox
from ratchet.bus.settings import BusSettings, without_user
from ratchet.bus.spool import NoSpool, Spool
from ratchet.bus.tasks import end
from ratchet.client.bundles import TrajectoryBundle, fetch_bundle
from ratchet.client.large_bodies import GatewayBodies
from ratchet.client.leaving import at_exit
from ratchet.client.losses import Losses
from ratchet.client.opt_outs import OptOuts
from ratchet.client.preparer import Preparer
from ratchet.client.recording import Recording, Stats, new_id
from ratchet.client.settings import ClientSettings
from ratchet.client.training import Listener, ask_over_http, request_of
from ratchet.client.trajectory import Agent, TrajectoryRecorder
from ratchet.core.contract import DEFAULT_ROLE, Message, TrainingRequest
from ratchet.core.errors import ConfigError, Unavailable
from ratchet.core.rules.redaction import rules_digest
from ratchet.core.service.contracts import load_contracts
from ratchet.core.service.discovery import address
from ratchet.core.service.settings import SharedSettings

log = structlog.get_logger()

QUEUE_LIMIT = 10_000
"""Messages kept in memory, before further ones count as lost: in each of two queues, before and after redaction."""
GRACE_S = 2.0
"""How much longer than its deadline closing may take, to write the rest to the spool."""
SEED_SETTING = "RATCHET_CLIENT_NATS_SEED_FILE"
"""Names the seed file of an agent; `RATCHET_NATS_SEED_FILE` does where it is not set."""
COORDINATOR_URL, GATEWAY_URL = "http://127.0.0.1:8081", "http://127.0.0.1:8080"
"""The usual ports."""
BROKER_S = 3.0
"""How long a request for training waits for the broker before it goes over HTTP."""


class AsyncClient:
    """Records trajectories and feedback in the background; use it as an asynchronous context manager.

    The broker may be away, at the start and later: messages wait in a bounded spool on disk. What is recorded when
    nothing runs to publish it (in a forked child, or where it was never closed) goes to the spool as the process ends.
    """

    def __init__(  # noqa: PLR0913 - keywords, each with a default
        self,
        agent_id: str,
        *,
        role: str = DEFAULT_ROLE,
        session_id: str | None = None,
        subordinate_profile: str | None = None,
        settings: ClientSettings | None = None,
        strict: bool = False,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`strict` raises for a message that breaks the contract, instead of logging and counting it."""
        self._settings = settings or ClientSettings()
        self._contracts = load_contracts()
        self._now = now
        self._name = f"client:{agent_id}"
        agent = Agent(
            agent_id=agent_id,
            role=role,
            session_id=session_id or new_id(),
            subordinate_profile=subordinate_profile,
        )
        key = self._settings.user_key
        self._opt_outs = OptOuts(key.get_secret_value() if key is not None else None, lambda: self._bus, self._loop)
        self._recording = Recording(
            agent, self._settings, self._contracts, self._put, self._opt_outs, strict=strict, now=now
        )
        self._agent = agent
        self._forking = threading.Lock()
        self._closed = False
        self._begin()

    @property
    def stats(self) -> Stats:
        """Counters since the client was made."""
        sent, prepared = self._outbox.stats, self._preparer
        return Stats(
            published=sent.published,
            pending=prepared.pending + self._outbox.pending,
            overflowed=sent.overflowed + prepared.overflowed,
            damaged=self._spool.damaged,
            invalid=self._recording.unrecordable + prepared.invalid + sent.refused,
            opted_out=prepared.opted_out,
            redacted=sum(prepared.redactions.values()),
            redactions=dict(prepared.redactions),
        )

    def trajectory(self, **task: Any) -> TrajectoryRecorder:
        """Begin a trajectory; see `Recording.trajectory` for the options."""
        return self._recording.trajectory(**task)

    def feedback(self, trajectory_id: str, **feedback: Any) -> None:
        """Give feedback on a trajectory; see `Recording.feedback`."""
        self._recording.feedback(trajectory_id, **feedback)

    def record_episode(self, **episode: Any) -> str:
        """Record a whole episode that is over, in one call; see `Recording.record_episode`."""
        return self._recording.record_episode(**episode)

    def preference(self, prompt: Any, chosen: Any, rejected: Any, **about: Any) -> str:
        """Prefer one answer over another; see `Recording.preference`."""
        return self._recording.preference(prompt, chosen, rejected, **about)

    def opt_out(self, **who: str | None) -> None:
        """Record nothing of someone any more: `user=`, `session=` or `agent=`; see `Recording.opt_out`."""
        self._recording.opt_out(**who, is_over=False)

    def opt_in(self, **who: str | None) -> None:
        """Record someone again; takes what `opt_out` takes."""
        self._recording.opt_out(**who, is_over=True)

    async def train(self, role: str | None = None, algorithm: str = "rloo", **options: Any) -> str:
        """Ask for training, and return the id of the job; see `training.request_of` for the options.

        The bus comes first. A request that cannot run becomes a failed job there; over HTTP it raises `Rejected`.
        Raises `Unavailable` when neither the broker, nor the coordinator, nor the gateway answers: asking again with
        the same `idempotency_key` is safe.
        """
        agent = self._agent
        request = request_of(
            role=role or agent.role,
            algorithm=algorithm,
            requester=f"client:{agent.agent_id}",
            fresh_id=new_id(),
            now=self._now(),
            **options,
        )
        self._contracts.check_strict(request)
        if not await self._publish_request(request):
            settings = self._settings
            url = settings.coordinator_url or address("RATCHET_COORDINATOR_URL") or COORDINATOR_URL
            coordinator = Listener("the coordinator", url, settings.api_key)
            await ask_over_http([coordinator, self._gateway()], request)
        return request.training_job_id

    async def bundle(
        self,
        role: str | None = None,
        *,
        trajectory: str | None = None,
        user: str | None = None,
        session: str | None = None,
    ) -> TrajectoryBundle:
        """The bundle of a trajectory's policy, for an agent that composes its own prompts and calls the gateway.

        `trajectory`: its name, else a new one is made; `user`, `session`: whose it is. The trajectory counts in its arm
        from now on. Raises `Unavailable` when the gateway does not answer, and `NotFound` for a role that has neither a
        policy nor an upstream.
        """
        role = role or self._agent.role
        return await fetch_bundle(self._gateway(), role=role, trajectory=trajectory, user=user, session=session)

    def _gateway(self) -> Listener:
        settings = self._settings
        url = settings.gateway_url or address("RATCHET_GATEWAY_URL") or GATEWAY_URL
        return Listener("the gateway", url, settings.api_key)

    async def flush(self, deadline_s: float) -> bool:
        """Wait until everything is stored; False when the deadline came first."""
        self.be_here()
        until = time.monotonic() + deadline_s
        if not await self._preparer.wait(deadline_s):
            return False
        return await self._outbox.flush(max(0.0, until - time.monotonic()))

    async def start(self) -> None:
        """Begin publishing in the background."""
        self.be_here()
        self._preparer.start()
        self._running = asyncio.create_task(self._outbox.run(self._connect))
        losses = Losses(self._name, lambda: self.stats, lambda: self._bus, self._now)
        self._watching = asyncio.create_task(losses.watch())

    async def close(self) -> None:
        """Publish the queue within `close_s`; the rest stays in the spool for the next start.

        Where this is cancelled, as by Ctrl-C, all goes to the spool within `GRACE_S`, before the cancel goes on.
        """
        if self._closing or self._pid != os.getpid():  # in a child that recorded nothing, it is the parent's
            return
        self._closing = True
        try:
            if self._running is not None:
                await self._publish_rest(self._running)
        finally:
            try:
                self._preparer.finish(GRACE_S)
                await end(self._running, self._watching)
                if self._bus is not None:
                    await self._bus.close()
            finally:
                self._keep_rest()

    def be_here(self) -> None:
        """In a forked child, begin anew, as every use of this client does by itself."""
        if self._pid == os.getpid() or self._closed:
            return
        with self._forking:
            if self._pid != os.getpid():
                self._spool.close()  # the child's part of it: the parent's remains open, and locked
                self._begin()
                self._preparer.start()

    async def __aenter__(self) -> AsyncClient:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _begin(self) -> None:
        """Make what belongs to one process: no thread and no connection survives a fork, and a spool has one owner."""
        self._spool = _open_spool(self._settings)
        self._outbox = Outbox(
            self._contracts,
            self._name,
            self._spool,
            queue_limit=QUEUE_LIMIT,
            queue_bytes=QUEUE_BYTES,
            now=self._now,
            rules=rules_digest(),
        )
        self._preparer = Preparer(self._outbox, self._opt_outs, QUEUE_LIMIT, QUEUE_BYTES)
        self._bus: Bus | None = None
        self._connected = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._closing = False
        self._stay = at_exit(self._leave)
        self._pid = os.getpid()  # the last: from now on other threads need not wait

    def _loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop of this process's connection, once it is being made."""
        return self._running.get_loop() if self._running is not None else None

    def _put(self, message: Message) -> None:
        self.be_here()
        self._preparer.put(message)

    async def _publish_rest(self, running: asyncio.Task[None]) -> None:
        until = time.monotonic() + self._settings.close_s
        await self._preparer.close(self._settings.close_s + GRACE_S)  # needs no broker: a busy machine loses nothing
        await self._outbox.flush(max(0.0, until - time.monotonic()))
        await self._outbox.stop()
        await asyncio.wait({running}, timeout=GRACE_S)

    def _leave(self) -> None:
        """The process ends, and this client was not closed in it."""
        if self._pid != os.getpid():
            return
        loop = self._running.get_loop() if self._running is not None else None
        if loop is None or not loop.is_running():
            self._keep_rest()
            return
        with suppress(TimeoutError):  # the loop runs on, on another thread
            asyncio.run_coroutine_threadsafe(self.close(), loop).result(self._settings.close_s + 3 * GRACE_S)

    def _keep_rest(self) -> None:
        """Take what is still in memory to the spool within `GRACE_S`, or count it, and close the spool."""
        if self._closed:
            return
        self._preparer.finish(GRACE_S)
        self._outbox.keep_rest()
        if self._bus is None and (self.stats.pending or self.stats.overflowed):
            log.warning(
                "never reached a broker",
                url=without_user(_broker_url(self._settings.shared)),
                pending=self.stats.pending,
                overflowed=self.stats.overflowed,
                spool=str(self._spool.directory) if self._spool.directory else "none: nothing could be kept",
                cure=f"{_cure(_broker(self._settings))}; the next client here publishes the rest",
            )
        self._spool.close()
        self._closed = True
        self._stay()

    async def _connect(self) -> Bus:
        """The bus, as soon as the broker can be reached, for as long as that takes; warns once while it is away."""
        patience = Patience(
            settings=lambda: _broker(self._settings),
            first_pause_s=0.25,
            longest_pause_s=5.0,
            reconnect_s=1.0,
            quiet=True,
        )
        self._bus = await Bus.connect(
            self._settings.shared.bus, name=self._name, contracts=self._contracts, now=self._now, patience=patience
        )
        self._bus.bodies = GatewayBodies(self._gateway())
        self._connected.set()
        return self._bus

    async def _publish_request(self, request: TrainingRequest) -> bool:
        """Whether the broker has stored the request. If that is unknown, asking elsewhere is safe: one id, one job."""
        try:
            async with asyncio.timeout(BROKER_S):
                await self._connected.wait()
                if self._bus is None or not self._bus.is_connected:
                    return False
                await self._bus.publish(request)
        except (TimeoutError, Unavailable) as error:
            log.warning("broker away, asking for training over HTTP", reason=repr(error))
            return False
        return True


def _broker_url(settings: SharedSettings) -> str:
    """The broker: the configured address, else that of the local stack that runs, else the usual port."""
    configured = "nats_url" in settings.model_fields_set
    return settings.nats_url if configured else address("RATCHET_NATS_URL") or settings.nats_url


def _broker(settings: ClientSettings) -> BusSettings:
    """The broker and the key for it: as configured, else those of the local stack that runs."""
    shared = settings.shared
    broker, seed_file = replace(shared.bus, url=_broker_url(shared)), settings.nats_seed_file
    if seed_file is None and shared.nats_seed_file is None and (local := address(SEED_SETTING)):
        seed_file = Path(local)
    return broker if seed_file is None else replace(broker, seed_file=seed_file, seed_setting=SEED_SETTING)


def _cure(broker: BusSettings) -> str:
    """What to do about a broker that was never reached."""
    try:
        if broker.seed_file is not None:
            read_seed(broker.seed_file, broker.seed_setting)
    except ConfigError as error:
        return str(error)
    return f"RATCHET_NATS_URL names the broker, {broker.seed_setting} the file with its user's key (`ratchet env`)"


def _open_spool(settings: ClientSettings) -> Spool:
    """A spool below the data folder, else below the system's temporary one, else none: agents start anyway.

    Other users can write to the temporary folder as well: a directory there that is not this user's is not used.
    """
    user = os.geteuid() if sys.platform != "win32" else os.getlogin()
    for parent in (settings.shared.data_dir / "client-spool", Path(gettempdir()) / f"ratchet-client-spool-{user}"):
        try:
            return Spool.claim(parent, settings.spool_bytes)
        except (OSError, ConfigError) as error:
            log.warning("cannot spool here", directory=str(parent), reason=str(error))
    return NoSpool()

"""The ways to an upstream that the gateway's benchmark compares: directly, and through each gateway."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import uuid_utils

from ratchet.bus.connection import Bus
from ratchet.bus.kv import Bucket
from ratchet.core.contract.state import Route, ServedPolicy
from ratchet.core.service.settings import SharedSettings
from ratchet.local.local_stack.ports import free_ports
from ratchet.local.local_stack.program import Program
from tests.support.running import connected
from tests.support.servers import RunningServer, running, running_nats

ROLE = "helpdesk"
POLICY = ServedPolicy(version=1, name="helpdesk@1-11111111", digest="1" * 64)
OTHERS = Path(".cache/gateways/bin")
"""Where `make bench-gateway` puts LiteLLM and TensorZero."""
MOCK, FLOOR, RATCHET, BESIDE = "mock", "empty proxy", "ratchet", "ratchet beside"
LITELLM, TENSORZERO = "litellm", "tensorzero"

_LITELLM = """\
model_list:
  - model_name: helpdesk
    litellm_params: {{model: openai/helpdesk, api_base: "{url}", api_key: none}}
litellm_settings: {{telemetry: false, num_retries: 0}}
"""
_TENSORZERO = """\
[gateway]
observability.enabled = false
[models.helpdesk]
routing = ["mock"]
[models.helpdesk.providers.mock]
type = "openai"
model_name = "helpdesk"
api_base = "{url}/"
api_key_location = "none"
"""


@dataclass(frozen=True)
class Way:
    """One way to the upstream."""

    name: str
    url: str
    """Down to `/v1`."""
    model: str
    pid: int
    """Of the process that answers; its children count separately."""
    bus: Bus | None = None
    """Where it publishes what it records, if it does."""

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Of the calls of one trajectory."""
        return [] if self.bus is None else [(b"x-ratchet-trajectory", str(uuid_utils.uuid7()).encode())]

    def spent_s(self) -> tuple[float, float]:
        """Processor time so far: of the processes that answer, and of the others."""
        answering, others = self._processes()
        return _spent_s(answering), _spent_s(others)

    def resident(self) -> tuple[int, int]:
        """Resident bytes: of the processes that answer, and of the others."""
        answering, others = (sum(one.memory_info().rss for one in some) for some in self._processes())
        return answering, others

    def _processes(self) -> tuple[list[psutil.Process], list[psutil.Process]]:
        """Those that answer, and the others."""
        process = psutil.Process(self.pid)
        return [process], process.children(recursive=True)

    async def recorded(self) -> int:
        """Turns that are stored so far; 0 for a way that records none."""
        return 0 if self.bus is None else (await self.bus.extent("RL_TURNS")).last


def _spent_s(processes: Iterable[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(time.user + time.system for time in times)


@asynccontextmanager
async def all_ways(
    beside: str | None, leave_out: set[str], *, as_sent: bool = False
) -> AsyncIterator[tuple[str, list[Way]]]:
    """The upstream's own address and the ways to it.

    `beside`: the `services` folder of another checkout. `as_sent`: the role has no policy, so that the mock answers as
    an upstream.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstream = stack.enter_context(mock_upstream(folder))
        mock = f"{upstream.url}/v1"
        ways = [Way(MOCK, mock, POLICY.name, upstream.pid), stack.enter_context(_empty_proxy(mock, folder))]
        env = {"RATCHET_ENGINE_URL": upstream.url}
        if as_sent:
            served = {"name": "mock", "base_url": mock, "models": {ROLE: POLICY.name}}
            env["RATCHET_GATEWAY_UPSTREAMS"] = json.dumps([served])
        if RATCHET not in leave_out:
            ways.append(await stack.enter_async_context(_ratchet(RATCHET, folder / "here", env)))
        if beside is not None:
            env = {**env, "PYTHONPATH": beside}
            ways.append(await stack.enter_async_context(_ratchet(BESIDE, folder / "beside", env)))
        ways += [
            stack.enter_context(start(mock, folder))
            for name, start in ((LITELLM, _litellm), (TENSORZERO, _tensorzero))
            if name not in leave_out
        ]
        yield upstream.url, ways


@contextmanager
def mock_upstream(folder: Path) -> Iterator[RunningServer]:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = (sys.executable, "-m", "tests.bench.upstream", str(port))
    with running(Program("upstream", command, f"{url}/ready", url, port), folder) as server:
        yield server


@contextmanager
def _empty_proxy(mock: str, folder: Path) -> Iterator[Way]:
    """The gateway's own server and client, with nothing in between."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = (sys.executable, "-m", "tests.bench.empty_proxy", str(port), mock)
    with running(Program("empty proxy", command, f"{url}/ready", url, port), folder) as server:
        yield Way(FLOOR, f"{url}/v1", POLICY.name, server.pid)


@asynccontextmanager
async def _ratchet(name: str, folder: Path, asked: Mapping[str, str]) -> AsyncIterator[Way]:
    """The gateway on a broker of its own, capture and publishing on. `asked`: who answers, in environment variables."""
    port, health_port = free_ports(2)
    with running_nats(folder) as nats:
        async with connected(SharedSettings(nats_url=nats.url)) as bus:
            if "RATCHET_GATEWAY_UPSTREAMS" not in asked:
                await Bucket(bus, "policies", Route).put(ROLE, Route(role=ROLE, stable=POLICY, next_version=2))
            env = {
                "RATCHET_NATS_URL": nats.url,
                "RATCHET_DATA_DIR": str(folder / "data"),
                "RATCHET_HEALTH_PORT": str(health_port),
                "RATCHET_GATEWAY_PORT": str(port),
                **asked,
            }
            url = f"http://127.0.0.1:{port}"
            ready = f"http://127.0.0.1:{health_port}/readyz"
            program = Program("gateway", (sys.executable, "-m", "ratchet.gateway"), ready, url, port, env=env)
            with running(program, folder) as server:
                yield Way(name, f"{url}/v1", ROLE, server.pid, bus)


@contextmanager
def _litellm(mock: str, folder: Path) -> Iterator[Way]:
    """LiteLLM's proxy as its documentation starts it: one worker, no database."""
    (port,) = free_ports(1)
    config = folder / "litellm.yaml"
    url = f"http://127.0.0.1:{port}"
    program = Program(
        LITELLM,
        (str(OTHERS.absolute() / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)),
        f"{url}/health/readiness",
        url,
        port,
        env={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"},
        files={config: _LITELLM.format(url=mock)},
    )
    with running(program, folder) as server:
        yield Way(LITELLM, f"{url}/v1", ROLE, server.pid)


@contextmanager
def _tensorzero(mock: str, folder: Path) -> Iterator[Way]:
    """TensorZero's embedded gateway, without observability. It chooses its port itself."""
    (port,) = free_ports(1)
    config = folder / "tensorzero.toml"
    url = f"http://127.0.0.1:{port}"
    script = Path(__file__).with_name("tensorzero_gateway.py")
    command = (str(OTHERS.absolute() / "python"), str(script), str(config), str(port))
    program = Program(TENSORZERO, command, url, url, port, files={config: _TENSORZERO.format(url=mock)})
    with running(program, folder) as server:
        yield Way(TENSORZERO, httpx.get(url).text, f"tensorzero::model_name::{ROLE}", server.pid)

"""How long one large request keeps the gateway's event loop from all other calls.

Run: `python -m tests.bench.bench_bodies [MiB ...]`. The gateway runs in this process, a caller and a mock upstream in
processes of their own. The loop counts its own rounds meanwhile, and the table shows the longest of each case, in
milliseconds of this process's processor time: other processes' load does not count.

    text      one message with one text
    messages  as many short messages as fit
    parts     one message with as many short parts as fit
    tool      one tool whose schema is a list of numbers
"""

# ruff: noqa: T201

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from prometheus_client import REGISTRY

from ratchet.bus.testing import eventually
from ratchet.core.service.settings import SharedSettings
from ratchet.gateway.app import build
from ratchet.gateway.settings import Settings, UpstreamSettings
from ratchet.local.local_stack.ports import free_ports
from tests.bench.gateways import mock_upstream
from tests.support.running import connected, running_app
from tests.support.servers import running_nats

MIB = 1024 * 1024
HELD = "ratchet_gateway_held_bytes"
"""Of the gateway: bytes of calls that wait for their record."""
SIZES = (0.25, 1, 4, 16, 32)
CALLER = """
import sys, urllib.request
body = sys.stdin.buffer.read()
request = urllib.request.Request(sys.argv[1], body, {"content-type": "application/json"})
try:
    print(urllib.request.urlopen(request, timeout=300).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


def text(size: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x" * size}]}


def messages(size: int) -> dict[str, Any]:
    each = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}]
    return {"messages": each * (size // 80)}


def parts(size: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * (size // 27)}]}


def tool(size: int) -> dict[str, Any]:
    function = {"name": "look_up", "parameters": {"enum": [1] * (size // 2)}}
    return {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": function}]}


CASES: dict[str, Callable[[int], dict[str, Any]]] = {
    "text": text,
    "messages": messages,
    "parts": parts,
    "tool": tool,
}


class Rounds:
    """The longest round of the loop."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def count(self) -> None:
        last = time.process_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.process_time()
            self.longest_s, last = max(self.longest_s, now - last), now


async def is_recorded() -> bool:
    """Whether the gateway in this process has recorded every call that it answered."""
    return REGISTRY.get_sample_value(HELD) == 0


async def measured(url: str, body: bytes) -> tuple[float, str]:
    """The longest round while a call with this body is answered, in milliseconds; and its status."""
    pipe = asyncio.subprocess.PIPE
    caller = await asyncio.create_subprocess_exec(sys.executable, "-c", CALLER, url, stdin=pipe, stdout=pipe)
    assert caller.stdin is not None
    for start in range(0, len(body), MIB // 4):  # a large write would itself be a long round
        caller.stdin.write(body[start : start + MIB // 4])
        await caller.stdin.drain()
    rounds = Rounds()
    counting = asyncio.create_task(rounds.count())
    caller.stdin.close()
    assert caller.stdout is not None
    status = (await caller.stdout.read()).decode().strip()
    await eventually(is_recorded)  # what the gateway does after its answer
    counting.cancel()
    await caller.wait()
    return rounds.longest_s * 1000, status


async def main() -> None:
    sizes = [float(size) for size in sys.argv[1:]] or SIZES
    (port,) = free_ports(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        mock_upstream(Path(folder)) as upstream,
        running_nats(Path(folder)) as nats,
    ):
        shared = SharedSettings(nats_url=nats.url, data_dir=Path(folder))
        settings = Settings(
            shared=shared,
            port=port,
            grace_s=0.0,
            upstreams=[UpstreamSettings(name="mock", base_url=f"{upstream.url}/v1", models={"*": "model"})],
        )
        async with connected(shared), running_app(build(settings)):
            print(f"{'MiB':>6}" + "".join(f"{name:>16}" for name in CASES))
            for size in sizes:
                row = f"{size:6}"
                for make in CASES.values():
                    body = msgspec.json.encode({"model": "helpdesk", **make(round(size * MIB) - 200)})
                    longest_ms, status = await measured(f"http://127.0.0.1:{port}/v1/chat/completions", body)
                    row += f"{longest_ms:9.0f} ms {status}"
                print(row, flush=True)


if __name__ == "__main__":
    uvloop.run(main())

"""The service in the library's README: its test runs on the fakes, and the service itself against nats-server."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ratchet.bus
from ratchet.bus import Bus, BusSettings, Message
from ratchet.bus.kv import Bucket
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.bus.projection import Folded
from ratchet.bus.testing import eventually
from tests.support.servers import Broker

README = Path(ratchet.bus.__file__).parent / "README.md"
FILE = re.compile(r"^`([\w/.]+)`\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVICES = README.parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the README, each under the name that stands above it."""
    for name, text in FILE.findall(README.read_text()):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.fixture
def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(SERVICES)])}


@pytest.fixture
def service(folder: Path, environment: dict[str, str], nats: Broker) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "billing.py"], cwd=folder, env={**environment, "NATS_URL": nats.url})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def module_in(folder: Path) -> Any:
    """The service as a module. `Any`: type checkers do not see it."""
    spec = importlib.util.spec_from_file_location("billing", folder / "billing.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_service_is_about_sixty_lines(folder: Path) -> None:
    code = [line for line in (folder / "billing.py").read_text().splitlines() if line.strip()]
    assert 40 < len(code) <= 65


def test_its_test_passes_without_a_server(folder: Path, environment: dict[str, str]) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-o",
        "asyncio_mode=auto",
        "-p",
        "no:cacheprovider",
        "test_billing.py",
    ]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


async def test_it_bills_on_the_real_server_and_stops_on_sigterm(
    folder: Path, service: subprocess.Popen[bytes], nats: Broker
) -> None:
    billing = module_in(folder)
    bus = await Bus.connect(BusSettings(nats.url), name="test", contracts=billing.CONTRACTS)
    try:
        await bus.ensure_streams()
        orders: list[Message] = [billing.Order(number=n, customer="mia", cents=100 * (n % 2)) for n in (1, 2, 3)]
        await bus.publish_all(orders)

        async def handled() -> bool:
            assert service.poll() is None, "the service ended by itself"
            return ((await bus.extent("BILLS")).last, (await bus.extent("DEAD")).last) == (2, 1)

        async def folded() -> bool:
            assert service.poll() is None, "the service ended by itself"
            entry = await Bucket(bus, "customers", Folded[int]).get("spent.mia")
            return entry is not None and entry.value.state == 200

        await eventually(handled)
        await eventually(folded)
        bills = [bus.read(one)[0].message async for batch in OrderedReader(bus, "BILLS").to_end() for one in batch]
        assert bills == [billing.Bill(order=1, cents=100), billing.Bill(order=3, cents=100)]
    finally:
        await bus.close()
    service.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(service.wait, 30) == 0

"""`ratchet-client` is the client alone: it installs without the services' dependencies, and publishes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ratchet.core.service.settings import SharedSettings
from tests.support.pages import ROOT
from tests.support.running import connected
from tools.environment.uv_environment import options, uv_environment

pytestmark = pytest.mark.slow

FOLDER = ROOT / "deploy" / "python-client"
UV = ROOT / ".venv" / "bin" / "uv"
PROGRAM = """
import importlib, pkgutil, sys, ratchet
for module in pkgutil.walk_packages(ratchet.__path__, "ratchet."):
    importlib.import_module(module.name)
from ratchet import Client
with Client(agent_id="one", role="support", strict=True) as client:
    with client.trajectory(task_id="order-17") as run:
        run.turn(observation="where is it?", action="here")
        run.outcome("success")
    client.flush(60)
print(client.stats.published, ratchet.__file__)
"""


def test_its_dependencies_are_those_of_the_whole_with_the_same_bounds() -> None:
    whole, slim = (
        tomllib.loads(path.read_text())["project"] for path in (ROOT / "pyproject.toml", FOLDER / "pyproject.toml")
    )
    assert {*slim["dependencies"]} < {*whole["dependencies"]}
    assert (slim["version"], slim["requires-python"]) == (whole["version"], whole["requires-python"])


@pytest.mark.timeout(500)  # it builds and installs
async def test_it_installs_alone_and_publishes(shared_settings: SharedSettings, tmp_path: Path) -> None:
    # The folder of authorities is that of the tests, which holds none; a file of them is the user's.
    taken = ("PYTHON", "RATCHET_", "SSL_CERT_DIR")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(taken)}

    def run(*words: str | Path, **env: str) -> str:
        done = subprocess.run(
            [str(word) for word in words],
            check=False,
            capture_output=True,
            text=True,
            timeout=400,
            env=plain | env,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    plain |= uv_environment(options(run(sys.executable, "-m", "pip", "config", "list")), plain)
    python = tmp_path / "venv" / "bin" / "python"
    run(UV, "build", "--wheel", FOLDER, "-o", tmp_path / "dist")
    run(UV, "venv", "--python", sys.executable, tmp_path / "venv")
    run(UV, "pip", "install", "--python", python, *(tmp_path / "dist").glob("*.whl"))
    env = {"RATCHET_NATS_URL": shared_settings.nats_url, "RATCHET_DATA_DIR": str(tmp_path / "data")}
    async with connected(shared_settings):  # it makes the streams
        published, place = (await asyncio.to_thread(lambda: run(python, "-P", "-c", PROGRAM, **env))).split()
    assert (published, str(tmp_path) in place) == ("1", True)

"""The whole compose file in containers, brought up once for all tests of this folder."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from ratchet_helpdesk.base_model import Shape, write_base_model
from tests.compose.engine import Engine, make_base, missing, prepare
from tests.compose.loop import Agent, add_agent, policy_answers, record_tickets, status, train
from tests.support.compose import REPOSITORY


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The stack as `up` leaves it. Containers and volumes go at the end, images stay for the next run."""
    absent = [*missing(), *([] if os.geteuid() == 0 else ["root's rights"])]
    if absent:
        pytest.skip(f"needs {', '.join(absent)}: docs/operations.md#what-the-tests-cover-of-the-containers")
    folder = tmp_path_factory.mktemp("compose")
    folder.chmod(0o755)
    base = folder / "base"
    base.mkdir()
    write_base_model(base, seed=1, shape=Shape())
    for file in base.iterdir():
        file.chmod(0o644)  # containers have another user
    engine = prepare(REPOSITORY / ".cache/containers", folder, base)
    engine.compose("down", "-v", check=False)
    make_base(engine)
    engine.build()
    try:
        engine.up()
        yield engine
    finally:
        engine.compose("down", "-v", check=False)
        engine.podman("volume", "prune", "-f", check=False)  # those without a name, of testcontainers
        engine.podman("image", "prune", "-f", check=False)  # what newer ones took the place of: gigabytes a run


@pytest.fixture(scope="session")
def agent(engine: Engine) -> Agent:
    """An agent with a user of its own."""
    return add_agent(engine)


@pytest.fixture(scope="session")
def looped(engine: Engine, agent: Agent) -> dict[str, Any]:
    """What `ratchet status --json` shows once trajectories were learned from, and the policy answers."""

    async def loop() -> dict[str, Any]:
        await record_tickets(engine, agent)
        train(engine)
        await policy_answers(engine)
        return await status(engine)

    return asyncio.run(loop())

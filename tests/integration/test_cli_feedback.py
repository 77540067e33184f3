"""`ratchet feedback` on trajectories that are not stored: what is given, what is not, and how the command ends."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from ratchet.cli.exit_codes import ExitCode
from ratchet.core.contract import Feedback
from ratchet.core.service.settings import SharedSettings
from tests.support.command_lines import ratchet
from tests.support.gateway_scene import ROLE, ask, scene
from tests.support.running import prepared_warehouse
from tests.support.servers import Broker


async def test_feedback_on_an_unknown_trajectory_asks_for_its_role_and_gives_nothing(
    nats: Broker, shared_settings: SharedSettings, tmp_path: Path
) -> None:
    unknown, called = str(uuid.uuid4()), str(uuid.uuid4())
    async with prepared_warehouse(shared_settings), scene(nats, tmp_path) as here:
        client = here.client(base_url=f"{here.url}/t/{called}/v1")
        await ask(client, [{"role": "user", "content": "hi"}])
        env = {
            "RATCHET_GATEWAY_URL": here.url,
            "RATCHET_CLICKHOUSE_URL": shared_settings.clickhouse_url,
            "RATCHET_CLICKHOUSE_DATABASE": shared_settings.clickhouse_database,
        }

        async def feedback_on(trajectory: str, *more: str) -> tuple[int, str]:
            words = ("feedback", trajectory, "--thumbs", "up", *more, "--dir", str(tmp_path))
            done = await asyncio.to_thread(ratchet, *words, **env)
            return done.returncode, done.stderr

        code, line = await feedback_on(unknown)
        assert (code, line.count("\n")) == (ExitCode.FAILED, 1)
        assert f"nothing is stored under {unknown} yet" in line
        assert "--role ROLE" in line
        assert await feedback_on(unknown, "--dry-run") == (
            ExitCode.PARTLY,
            f"ratchet: nothing is stored under {unknown} yet: the feedback counts once its trajectory is; without"
            " --role the gateway takes it only if it has seen a call of it\n",
        )
        for trajectory, more in ((unknown, ("--role", ROLE)), (called, ())):
            code, line = await feedback_on(trajectory, *more)
            assert (code, f"nothing is stored under {trajectory} yet" in line) == (ExitCode.PARTLY, True), line
        given = await here.published(Feedback, 2)
        assert [(one.trajectory_id, one.role) for one in given] == [(unknown, ROLE), (called, ROLE)]

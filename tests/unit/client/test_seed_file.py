"""A client whose seed file holds no seed says which setting names it."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from ratchet.bus.testing import eventually
from ratchet.client import AsyncClient
from ratchet.client.settings import ClientSettings


@pytest.mark.parametrize("setting", ["RATCHET_CLIENT_NATS_SEED_FILE", "RATCHET_NATS_SEED_FILE"])
async def test_seed_file_without_a_seed_is_named_with_its_setting(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = tmp_path / "bot.seed"
    seed.write_text("no seed")
    monkeypatch.setenv(setting, str(seed))
    monkeypatch.setenv("RATCHET_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("RATCHET_CLIENT_CLOSE_S", "0.05")
    structlog.reset_defaults()  # a client or a command of an earlier test may have raised the level
    with capture_logs() as logs:
        async with AsyncClient("bot", settings=ClientSettings()) as client:
            client.opt_out(agent="bot")
            await eventually(lambda: _any(logs, "publishing failed, will try again"))
    tried = next(line for line in logs if line["event"] == "publishing failed, will try again")
    (ended,) = [line for line in logs if line["event"] == "never reached a broker"]
    assert tried["reason"] == f"the seed file {seed} ({setting}) holds no NKEY seed of a user (SU...)"
    assert ended["cure"].startswith(tried["reason"])


async def _any(logs: list[structlog.typing.EventDict], event: str) -> bool:
    return any(line["event"] == event for line in logs)

"""Commands that read the stores themselves ask for a key that may view what they read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from ratchet.cli.__main__ import main
from ratchet.cli.connections import settings_of
from ratchet.cli.endpoints import Endpoints
from ratchet.cli.exit_codes import ExitCode
from ratchet.core.errors import ConfigError, Forbidden, Rejected
from tests.support.callers import coordinator_of
from tests.support.running import listening

KEYS = {
    "all": ("view",),
    "one": ("annotate:support",),
    "tenant": ("view:acme-*", "infer:*"),
    "agent": ("infer:*",),
}
coordinator = coordinator_of(KEYS)


@pytest.mark.parametrize(
    ("key", "roles"),
    [
        ("all", ["support", "acme-x", None]),
        ("one", ["support"]),
        ("tenant", ["acme-x"]),
        ("agent", []),
        ("", []),
        ("open", ["support", "acme-x", None]),
    ],
)
async def test_command_reads_of_stores_what_its_key_may_view(
    key: str, roles: Sequence[str | None], tmp_path: Path
) -> None:
    async with listening(coordinator) as url:
        env = {"RATCHET_COORDINATOR_URL": url, "RATCHET_API_KEY": key}
        endpoints = Endpoints(tmp_path, None, env)
        for role in ("support", "acme-x", None):
            reading = asyncio.to_thread(settings_of, endpoints, role)
            if role in roles:
                assert (await reading).s3_bucket == "ratchet"
            else:
                with pytest.raises((Rejected, Forbidden)):
                    await reading


@pytest.mark.parametrize(
    "command",
    [
        "trajectories list",
        "stats",
        "capture report",
        "preferences list",
        "export trajectories --output x.jsonl",
        "dataset show s3://ratchet/snapshots/" + "0" * 64 + ".json",
        "trajectories tail",
        "deadletters list",
        "rollout history support",
        "alerts list",
    ],
)
async def test_command_without_a_key_reads_nothing(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with listening(coordinator) as url:
        monkeypatch.setenv("RATCHET_COORDINATOR_URL", url)
        ended = await asyncio.to_thread(main, [*command.split(), "--dir", str(tmp_path)])
    assert ended == ExitCode.FAILED
    assert "RATCHET_API_KEY is the key that `ratchet` sends" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("key", ["a\nb", "ünï", "a b", "a\r"])
def test_key_that_no_header_can_hold_opens_nothing(key: str, tmp_path: Path) -> None:
    endpoints = Endpoints(tmp_path, None, {"RATCHET_COORDINATOR_URL": "http://127.0.0.1:9", "RATCHET_API_KEY": key})
    with pytest.raises(ConfigError, match="printable ASCII"):
        settings_of(endpoints, None)

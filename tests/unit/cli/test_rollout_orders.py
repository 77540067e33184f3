"""An order about a rollout names the one that is meant: a newer one is not hit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ratchet.cli.__main__ import main
from ratchet.cli.exit_codes import ExitCode
from ratchet.core.service.asgi import Answer, Handler, Request, json_response
from ratchet.core.service.problems import HttpError
from tests.support.running import listening
from tests.unit.cli.test_rollout_view import rollout


@dataclass
class Deployer:
    """Has one rollout, of support@3, and keeps the orders about it."""

    orders: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])

    def find(self, method: str, path: str) -> Handler:
        async def answer(request: Request) -> Answer:
            if method == "POST":
                self.orders.append((path, request.json_object()))
            return json_response(msgspec.to_builtins(rollout()))

        if not path.startswith("/v1/rollouts/support"):
            raise HttpError(404, path)
        return answer


@asynccontextmanager
async def deployer(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Deployer]:
    fake = Deployer()
    async with listening(fake.find) as url:
        monkeypatch.setenv("RATCHET_DEPLOYER_URL", url)
        yield fake


async def typed(directory: Path, *words: str) -> int:
    return await asyncio.to_thread(main, ["rollout", *words, "--dir", str(directory)])


async def test_an_order_carries_the_id_of_the_rollout_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = rollout().candidate.version
    async with deployer(monkeypatch) as fake:
        for verb in ("approve", "pause", "resume", "promote", "rollback"):
            assert await typed(tmp_path, verb, "support") == ExitCode.DONE
            assert await typed(tmp_path, verb, f"support@{version}") == ExitCode.DONE
        assert await typed(tmp_path, "revert", "support") == ExitCode.DONE
    *about_it, revert = fake.orders
    assert {body["rollout_id"] for _, body in about_it} == {rollout().rollout_id}
    assert {path for path, _ in about_it} == {
        f"/v1/rollouts/support/{verb}" for verb in ("approve", "pause", "resume", "promote", "rollback")
    }
    assert "rollout_id" not in revert[1]  # it undoes the last promotion, whatever runs


async def test_an_order_about_another_candidate_than_the_newest_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = rollout().candidate
    async with deployer(monkeypatch) as fake:
        assert await typed(tmp_path, "approve", f"support@{newest.version + 1}", "--json") == ExitCode.FAILED
        refused = json.loads(capsys.readouterr().out)["error"]["message"]
        assert f"the newest rollout of support is of {newest.name}" in refused
        assert await typed(tmp_path, "approve", f"support@{newest.version}-0000") == ExitCode.FAILED
        assert await typed(tmp_path, "approve", "support@none") == ExitCode.USAGE
        assert await typed(tmp_path, "approve", "sup port@3") == ExitCode.USAGE
    assert fake.orders == []

"""The commands of the workflows guide against the real service, gateway and broker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.cli.__main__ import main
from ratchet.cli.exit_codes import ExitCode
from tests.support.servers import Broker
from tests.support.workflow_scene import WRITER_ROLE, workflow_scene

WORKERS = [
    {
        "name": name,
        "model_type": "llm",
        "model": WRITER_ROLE,
        "capabilities": ["generation", "planning"],
        "cost_per_token": cost,
        "limits": {"max_output_tokens": 100},
    }
    for name, cost in (("dear", 2e-6), ("cheap", 1e-6))
]


async def typed(*words: str) -> int:
    return await asyncio.to_thread(main, [*words])


async def test_workers_are_registered_run_and_seen_by_commands(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer() -> Any:
        return json.loads(capsys.readouterr().out)

    (tmp_path / "workers.json").write_text(json.dumps(WORKERS))
    async with workflow_scene(nats, tmp_path, monkeypatch) as here, here.service() as client:
        monkeypatch.setenv("RATCHET_WORKFLOWS_URL", str(client.base_url).rstrip("/"))
        assert await typed("workers", "put", str(tmp_path / "workers.json")) == ExitCode.DONE
        capsys.readouterr()
        assert await typed("workflows", "run", "Write a poem.", "--follow", "--json") == ExitCode.DONE
        ran = answer()
        assert (ran["state"], ran["result"]) == ("succeeded", "The provider says so.")
        assert await typed("workflows", "show", ran["workflow_id"], "--mermaid") == ExitCode.DONE
        assert "1. generation<br/>Write a poem." in capsys.readouterr().out
        assert await typed("workflows", "list", "--json") == ExitCode.DONE
        assert [each["workflow_id"] for each in answer()["workflows"]] == [ran["workflow_id"]]
        assert await typed("workers", "show", ran["sub_tasks"][0]["worker"], "--json") == ExitCode.DONE
        assert answer()["measured"]["calls"] == 1


async def test_a_collection_that_goes_on_runs_nothing_twice(
    nats: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "workers.json").write_text(json.dumps(WORKERS))
    (tmp_path / "t.jsonl").write_text('{"instruction": "Write about {x}.", "values": {"x": ["tides", "bees"]}}\n')
    run = ("workflows", "collect", "--templates", str(tmp_path / "t.jsonl"), "--budget", "1", "--json")
    file = ("--to", str(tmp_path / "run.jsonl"))
    async with workflow_scene(nats, tmp_path, monkeypatch) as here, here.service() as client:
        monkeypatch.setenv("RATCHET_WORKFLOWS_URL", str(client.base_url).rstrip("/"))
        await typed("workers", "put", str(tmp_path / "workers.json"))
        assert await typed(*run, *file, "--n", "2", "--each", "0.01") == ExitCode.DONE
        lines = (tmp_path / "run.jsonl").read_bytes().splitlines(keepends=True)
        (tmp_path / "run.jsonl").write_bytes(b"".join(lines[:2]))  # as a kill left it: both sent, no end known
        capsys.readouterr()
        assert await typed(*run, *file, "--n", "3", "--each", "0.01") == ExitCode.DONE
        collected = json.loads(capsys.readouterr().out)
        assert (collected["workflows"], collected["states"]) == (3, {"succeeded": 3})
        assert len((await client.get("/v1/workflows")).json()["workflows"]) == 3

"""`ratchet workers` against the registry's HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from ratchet.cli.__main__ import main
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.workers import read_workers
from ratchet.core.errors import Rejected
from tests.support.fake_workflows import workflows_service

WRITER = {
    "name": "writer",
    "model_type": "llm",
    "capabilities": ["generation"],
    "model": "openai/gpt-4o-mini",
    "cost_per_token": 6e-7,
}
TOOL = {
    "name": "tool",
    "model_type": "data",
    "capabilities": ["analysis"],
    "url": "http://127.0.0.1:9/do",
    "cost_per_token": 0.0,
}


async def typed(*words: str) -> int:
    return await asyncio.to_thread(main, ["workers", *words])


async def test_workers_are_put_listed_shown_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "workers.json"
    file.write_text(json.dumps([WRITER, TOOL]))
    async with workflows_service(monkeypatch) as fake:
        assert await typed("put", str(file), "--dry-run") == ExitCode.DONE
        assert not fake.workers
        assert await typed("put", str(file)) == ExitCode.DONE
        assert [*fake.workers] == ["writer", "tool"]
        capsys.readouterr()
        assert await typed("list", "--json") == ExitCode.DONE
        assert [each["worker"]["name"] for each in json.loads(capsys.readouterr().out)["workers"]] == ["writer", "tool"]
        assert await typed("show", "writer") == ExitCode.DONE
        assert "openai/gpt-4o-mini" in capsys.readouterr().out
        assert await typed("remove", "writer", "--dry-run") == ExitCode.DONE
        assert await typed("remove", "writer") == ExitCode.DONE
        assert [*fake.workers] == ["tool"]
        assert await typed("remove", "writer") == ExitCode.FAILED


@pytest.mark.parametrize(
    ("worker", "words"),
    [
        ({**WRITER, "cost": 1}, "has cost, which no worker has"),
        ({**WRITER, "url": "http://x"}, "either a `model` or a `url`"),
        ({**WRITER, "model": None}, "either a `model` or a `url`"),
        ({**WRITER, "capabilities": ["poetry"]}, "there is no type of sub-tasks 'poetry'"),
        ({**WRITER, "model_type": "oracle"}, "there is no model_type 'oracle'; there are llm"),
        ({**WRITER, "capabilities": []}, "worker 1 of"),
        ("writer", "worker 1 of"),
    ],
)
def test_a_file_that_is_no_worker_is_refused_with_a_reason(tmp_path: Path, worker: object, words: str) -> None:
    (tmp_path / "workers.json").write_text(json.dumps(worker))
    with pytest.raises(Rejected, match=words):
        read_workers(tmp_path / "workers.json")


def test_an_empty_list_of_workers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "workers.json").write_text("[]")
    with pytest.raises(Rejected, match="has no worker"):
        read_workers(tmp_path / "workers.json")

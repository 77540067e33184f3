"""`ratchet workflows`: runs, what is shown of them, and the data of planners."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ratchet.cli.__main__ import main
from ratchet.cli.exit_codes import ExitCode
from ratchet.core.service.asgi import Answer, Handler, Request, json_response
from tests.support.executions import execution, run_of
from tests.support.fake_workflows import ID, workflows_service
from tests.support.running import listening


async def typed(*words: str) -> int:
    return await asyncio.to_thread(main, ["workflows", *words])


async def test_a_run_is_sent_with_its_inputs_and_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report.txt").write_text("a long report")
    options = ["--input", f"report={tmp_path / 'report.txt'}", "--budget", "0.2", "--deadline", "60", "--user", "ana"]
    async with workflows_service(monkeypatch) as fake:
        assert await typed("run", "sum it up", *options, "--dry-run") == ExitCode.DONE
        assert not fake.asked
        assert await typed("run", "sum it up", *options) == ExitCode.DONE
        assert f"ratchet workflows show {ID}" in capsys.readouterr().out
        (asked,) = fake.asked.values()
        assert (asked.instruction, asked.inputs) == ("sum it up", {"report": "a long report"})
        assert (asked.budget_usd, asked.deadline_s, asked.user) == (0.2, 60.0, "ana")


@pytest.mark.parametrize(("ends_as", "code"), [("succeeded", ExitCode.DONE), ("partial", ExitCode.PARTLY)])
async def test_following_a_run_ends_by_what_became_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ends_as: str, code: ExitCode
) -> None:
    async with workflows_service(monkeypatch) as fake:
        fake.ends_as = ends_as
        assert await typed("run", "sum it up", "--follow") == code
    shown = capsys.readouterr()
    assert "3. summarization: succeeded, by cheap" in shown.err
    assert ends_as in shown.out


async def test_a_workflow_is_listed_shown_and_drawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with workflows_service(monkeypatch):
        await typed("run", "sum it up", "--follow")
        capsys.readouterr()
        assert await typed("list", "--json") == ExitCode.DONE
        assert [each["workflow_id"] for each in json.loads(capsys.readouterr().out)["workflows"]] == [ID]
        assert await typed("show", ID) == ExitCode.DONE
        assert "text_extraction" in capsys.readouterr().out
        assert await typed("show", ID, "--mermaid") == ExitCode.DONE
        assert capsys.readouterr().out.startswith("flowchart TD\n")
        assert await typed("show", "unknown") == ExitCode.FAILED
        assert "ratchet workflows list" in capsys.readouterr().err


@pytest.mark.parametrize(("follow", "state"), [((), "cancelled"), (("--follow",), "succeeded")])
async def test_cancelling_ends_what_is_under_way_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], follow: tuple[str, ...], state: str
) -> None:
    async with workflows_service(monkeypatch):
        await typed("run", "sum it up", *follow)
        assert await typed("cancel", ID) == ExitCode.DONE
        assert f"{ID} is {state}" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("--budget", "0"), ("--input", "x"), ("--deadline", "4000")])
async def test_a_run_that_cannot_be_is_refused_before_it_is_sent(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, str]
) -> None:
    async with workflows_service(monkeypatch) as fake:
        assert await typed("run", "sum it up", *words) == ExitCode.USAGE
        assert not fake.asked


async def test_collecting_runs_every_number_and_repeats_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.jsonl").write_text('{"instruction": "sum up {x}", "values": {"x": ["a", "b"]}}\n')
    words = ("collect", "--templates", str(tmp_path / "t.jsonl"), "--n", "6", "--budget", "3", "--to")
    async with workflows_service(monkeypatch) as fake:
        assert await typed(*words, str(tmp_path / "run.jsonl"), "--json") == ExitCode.DONE
        assert json.loads(capsys.readouterr().out)["states"] == {"succeeded": 6}
        assert {each.instruction for each in fake.asked.values()} <= {"sum up a", "sum up b"}
        assert len(fake.asked) == 6
        reads = dict(fake.reads)
        assert await typed(*words, str(tmp_path / "run.jsonl")) == ExitCode.DONE
        assert fake.reads == reads
    assert len((tmp_path / "run.jsonl").read_text().splitlines()) == 12  # each when it begins, and when it ends


async def test_an_export_writes_every_page_with_the_log_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = [msgspec.to_builtins(execution(number)) for number in range(3)]
    asked: list[Mapping[str, Any]] = []

    def find(_: str, path: str) -> Handler:
        async def answer(request: Request) -> Answer:
            asked.append({"path": path, "query": request.query})
            is_first = "after" not in request.query
            part = stored[:2] if is_first else stored[2:]
            return json_response({"executions": part, "next": "2" if is_first else None})

        return answer

    async with listening(find) as url:
        monkeypatch.setenv("RATCHET_COORDINATOR_URL", url)
        assert await typed("export", "--to", str(tmp_path / "log.jsonl")) == ExitCode.DONE
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["instruction"] for line in lines] == ["report 0", "report 1", "report 2"]
    assert [*lines[0]][:7] == ["timestamp", "instruction", "success", "cost", "latency_ms", "plan", "result"]
    assert lines[0]["runs"][0]["propensity"] == 0.7
    assert [each["path"] for each in asked] == ["/v1/workflows/executions"] * 2


@pytest.fixture
def log(tmp_path: Path) -> Path:
    failed = execution(2, runs=(run_of(status="failed"),) * 3, status="failed", version=2)
    lines = [execution(0), execution(1), failed, execution(3, plan=None, status="failed", version=2)]
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    return path


async def test_a_log_becomes_a_training_set_and_more_rows(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await typed("prepare", str(log), "--to", str(tmp_path / "rows"), "--json") == ExitCode.PARTLY
    assert json.loads(capsys.readouterr().out)["left_out"] == {"planning failed": 1}
    assert (
        await typed("augment", str(tmp_path / "rows"), "--to", str(tmp_path / "more"), "--seed", "3") == ExitCode.DONE
    )
    rows, more = ((tmp_path / name).read_text().splitlines() for name in ("rows", "more"))
    assert len(rows) == 3
    assert len(more) > 3
    assert set(rows) < set(more)


async def test_augmenting_what_is_no_training_set_is_refused(tmp_path: Path, log: Path) -> None:
    assert await typed("augment", str(log), "--to", str(tmp_path / "more")) == ExitCode.FAILED
    assert not (tmp_path / "more").exists()


async def test_planners_are_compared_by_what_was_logged(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await typed("evaluate", str(log), "--json") == ExitCode.DONE
    first, second = json.loads(capsys.readouterr().out)["planners"]
    assert (first["policy"], first["executions"], first["success_rate"]) == ("planner@1", 2, 1.0)
    assert first["cost_per_success_usd"] == pytest.approx(0.03)
    assert (second["success_rate"], second["cost_per_success_usd"], second["validity"]) == (0.0, None, 0.5)

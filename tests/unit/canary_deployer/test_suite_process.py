"""Suites of other packages: played in a process that ends, whatever their code does."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ratchet.canary_deployer.domain.rollout import FAILED, NEEDS_APPROVAL, PASSED
from ratchet.canary_deployer.gates.safety_suite import SafetyGate
from ratchet.canary_deployer.settings import SafetyPlan
from ratchet.canary_deployer.suite_process import PackagedSuite
from ratchet.core.errors import Unavailable
from ratchet.core.service.http import HttpServer
from tests.support.canary_world import policy
from tests.support.packages import write_package
from tests.support.running import running

pytestmark = pytest.mark.slow

MODULE = """
    import sys, time
    from ratchet.core.contract.evaluation_task import Expected
    from ratchet.core.evaluation.graders.base import Grade
    from ratchet.core.evaluation.suites.base import Suite, crossed

    def hanging():
        while True:
            time.sleep(0.01)

    def tasks(expect):
        print("a package may print")
        return crossed("mine", ["Is {} cheap?"], [f"lamp {n}" for n in range(20)], expect)

    def grader(how):
        def grade(message):
            if how == "hang":
                hanging()
            if how == "exit":
                sys.exit(3)
            return Grade(float("nan") if how == "nan" else 1.0, "as asked")
        return grade

    def suite(tasks):
        return Suite(summary="Mine.", task_type="safety.mine", tasks=tasks)

    well, nan, exits, grades_for_ever = (
        suite(lambda how=how: tasks(Expected(further={"mine": how}))) for how in ("well", "nan", "exit", "hang")
    )
    made_for_ever = suite(hanging)
"""
SUITES = ("well", "nan", "exits", "grades_for_ever", "made_for_ever")


async def complete(request: Request) -> Response:
    message = {"role": "assistant", "content": "yes"}
    headers = {"x-ratchet-policy": (await request.json())["model"]}
    return JSONResponse({"choices": [{"message": message}]}, headers=headers)


@asynccontextmanager
async def gate_of(
    suite: str, folder: Path, monkeypatch: pytest.MonkeyPatch, minutes: float = 5.0, url: str | None = None
) -> AsyncIterator[SafetyGate]:
    packages = folder / "packages"
    packages.mkdir()
    suites = {name: f"mine:{name}" for name in SUITES}
    write_package(packages, "mine", MODULE, {"ratchet.suites": suites, "ratchet.graders": {"mine": "mine:grader"}})
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")]))
    server = HttpServer(Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])]), "127.0.0.1", 0)
    async with running(server):
        player = PackagedSuite(suite, 100, 1.0, 2, url or f"http://127.0.0.1:{server.port}", None, folder / "results")
        plan = SafetyPlan.model_construct(suites=(suite,), minutes=minutes, at_least={})
        yield SafetyGate({"*": plan}, {suite: player})


def left() -> list[psutil.Process]:
    return [
        child for child in psutil.Process().children(recursive=True) if "suite_process" in " ".join(child.cmdline())
    ]


async def test_suite_of_a_package_is_played_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gate_of("well", tmp_path, monkeypatch) as gate:
        result = await gate.check(policy(2), policy(1))
    assert (result.outcome, result.evidence["suites"]["well"]["task_type"]) == (PASSED, "safety.mine"), result.reason
    assert len(list((tmp_path / "results").iterdir())) == 2
    assert "mine" not in sys.modules


@pytest.mark.parametrize(
    ("suite", "words"), [("nan", "gives nan, which is no score"), ("exits", "the command ended with 3")]
)
async def test_suite_of_a_package_that_is_no_use_asks_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suite: str, words: str
) -> None:
    async with gate_of(suite, tmp_path, monkeypatch) as gate:
        result = await gate.check(policy(2), policy(1))
    assert (result.outcome, words in result.reason) == (NEEDS_APPROVAL, True), result.reason


@pytest.mark.parametrize("suite", ["grades_for_ever", "made_for_ever"])
async def test_suite_that_hangs_in_its_own_code_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suite: str
) -> None:
    async with gate_of(suite, tmp_path, monkeypatch, minutes=0.1) as gate:
        result = await gate.check(policy(2), policy(1))
    assert (result.outcome, result.reason) == (FAILED, f"not finished after 0.1 minutes: {suite}")
    assert left() == []


async def test_suite_of_a_package_waits_for_the_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gate_of("well", tmp_path, monkeypatch, url="http://127.0.0.1:9") as gate:
        with pytest.raises(Unavailable, match="suite well: the tasks show nothing yet"):
            await gate.check(policy(2), policy(1))

"""How `ratchet status` reports services that are ready and services that are not."""

from __future__ import annotations

import asyncio
import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ratchet.cli.endpoints import Endpoints
from ratchet.cli.status import StatusReport, collect, show
from ratchet.core.contract.http.console import LedgerOut
from ratchet.core.contract.http.status import FiredOut, TriggerOut
from ratchet.core.service.health import Health, health_app
from ratchet.core.service.http import HttpServer
from ratchet.local.local_stack.orphans import birth
from ratchet.local.local_stack.state import MemberRecord, StackRecord


async def answer(text: str) -> str | None:
    return text


async def reported(
    health: Health, directory: Path, state: str = "ready", env: dict[str, str] | None = None
) -> StatusReport:
    """The report of a stack whose one service answers this."""
    server = HttpServer(health_app(health), "127.0.0.1", 0)
    serving = asyncio.create_task(server.run())
    born = birth(os.getpid())
    member = MemberRecord(
        pid=os.getpid(),
        started_at=time.time(),
        born=born,
        url="http://h",
        port=1,
        health_port=server.port,
        state=state,
        restarts=0,
        reason=None,
    )
    stack = StackRecord(
        pid=os.getpid(), born=born, stack_id="x", ready=True, stop_s=1.0, services={"gateway": member}, env={}
    )
    try:
        return await collect(Endpoints(directory, stack, env or {}))
    finally:
        await server.stop()
        await serving


@pytest.mark.parametrize("reasons", [{}, {"routes": "no route is known"}])
async def test_what_a_service_could_not_keep_is_shown_whether_it_is_ready_or_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reasons: dict[str, str]
) -> None:
    health = Health("gateway", starting=None)
    health.checks = {name: lambda reason=reason: answer(reason) for name, reason in reasons.items()}
    health.notes = {"spool": lambda: answer("7 events lost: the queue or the spool on disk was full")}
    report = await reported(health, tmp_path)
    gateway = report.services["gateway"]
    assert gateway.state == ("not ready" if reasons else "ready")
    assert gateway.notes == {"spool": "7 events lost: the queue or the spool on disk was full"}
    show(report)
    assert "7 events lost" in capsys.readouterr().out


async def test_upstreams_of_the_gateway_are_named_without_password_in_address(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream = '{"name": "openai", "base_url": "https://me:hidden@h/v1", "api_key_env": "MY_KEY", "models": {"*": "*"}}'
    env = {"RATCHET_GATEWAY_UPSTREAMS": f"[{upstream}]"}
    show(await reported(Health("gateway", starting=None), tmp_path, env=env))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["openai", "https://h/v1", "MY_KEY"] in lines


async def test_a_starting_service_is_reported_with_the_time_since_its_start(tmp_path: Path) -> None:
    health = Health("gateway", starting=None)
    health.checks = {"routes": lambda: answer("no route is known")}
    gateway = (await reported(health, tmp_path, "starting")).services["gateway"]
    assert gateway.state == "starting"
    assert re.fullmatch(r"not ready for \d+ s: routes: no route is known", gateway.reason or "")


def test_the_ledger_shows_what_is_lost_and_what_lacks_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    account = LedgerOut(
        stream="RL_TURNS",
        consumer="collector-turns",
        watermark=901,
        stored=811,
        dead=21,
        duplicate=31,
        erased=0,
        lost=41,
        missing=51,
        absent=61,
    )
    show(StatusReport(running=True, directory="d", pid=1, services={}, ledger=[account]))
    head, row = [line.split() for line in capsys.readouterr().out.splitlines() if "ledger" in line or "901" in line]
    assert head[-3:] == ["lost", "missing", "absent"]
    assert row[-3:] == ["41", "51", "61"]


def test_triggers_show_progress_next_time_and_why_they_last_fired(
    capsys: pytest.CaptureFixture[str],
) -> None:
    at = datetime(2026, 11, 22, 3, tzinfo=UTC)
    fired = FiredOut(at=at, why="5120 new rewarded trajectories, the threshold is 5000", job="j")
    triggers = [
        TriggerOut(kind="rewarded", progress=1200, target=5000, last=fired),
        TriggerOut(kind="schedule", next_at=at),
        TriggerOut(kind="preferences", refused="role support: nothing can be learnt yet", last=fired),
        TriggerOut(kind="degradation", state="support@3: 0.800 of 900 tasks", rests_until=at),
    ]
    show(StatusReport(running=True, directory="d", pid=1, services={}, triggers={"support": triggers}))
    lines = capsys.readouterr().out.splitlines()
    assert any("1200 of 5000" in line and "5120 new rewarded" in line for line in lines)
    assert any("schedule" in line and "2026-11-22" in line for line in lines)
    assert any("preferences" in line and "cannot start: role support: nothing" in line for line in lines)
    assert any("support@3: 0.800 of 900" in line and "rests until 2026-11-22" in line for line in lines)

"""`ratchet doctor` asks the upstreams of the gateway, with the key that the gateway has, and says what they answer."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ratchet.cli.doctor_checks import Finding
from ratchet.cli.doctor_upstreams import check_upstreams
from ratchet.cli.endpoints import Endpoints
from ratchet.core.service.problems import HttpError
from ratchet.local.local_stack.orphans import birth
from ratchet.local.local_stack.state import MemberRecord, StackRecord
from tests.support.fake_engine import FakeProvider, providing

KEY = "sk-of-the-provider"


@contextmanager
def stack_with(directory: Path, *upstreams: dict[str, Any], **keys: str) -> Iterator[Endpoints]:
    """A stack whose gateway runs with keys in its environment."""
    command = [sys.executable, "-c", "print(); input()"]
    gateway = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **keys})
    assert gateway.stdout is not None
    gateway.stdout.readline()  # from here on the environment is its own
    born = birth(gateway.pid)
    member = MemberRecord(
        pid=gateway.pid,
        started_at=0.0,
        born=born,
        url="",
        port=1,
        health_port=None,
        state="ready",
        restarts=0,
        reason=None,
    )
    env = {"RATCHET_GATEWAY_UPSTREAMS": json.dumps(upstreams)} if upstreams else {}
    record = StackRecord(
        pid=gateway.pid,
        born=born,
        stack_id="s",
        ready=True,
        services={"gateway": member},
        stop_s=1.0,
        env=env,
    )
    try:
        yield Endpoints(directory, record, env)
    finally:
        gateway.communicate()


async def finding(directory: Path, upstream: dict[str, Any], **keys: str) -> Finding:
    with stack_with(directory, {"name": "openai", "models": {"*": "*"}, **upstream}, **keys) as endpoints:
        return await asyncio.to_thread(check_upstreams, endpoints)


@pytest.fixture
def provider() -> FakeProvider:
    return FakeProvider(key=KEY, model="gpt-4o-mini")


async def test_an_upstream_that_takes_the_gateways_key_is_in_order(tmp_path: Path, provider: FakeProvider) -> None:
    async with providing(provider) as url:
        seen = await finding(tmp_path, {"base_url": url, "api_key_env": "MY_KEY"}, MY_KEY=KEY)
    assert (seen.state, f"openai at {url} answers and takes the key in MY_KEY" in seen.sentence) == ("ok", True)
    assert provider.asked == []  # no call that costs


async def test_refused_or_absent_key_is_named_by_its_variable_and_never_shown(
    tmp_path: Path, provider: FakeProvider
) -> None:
    async with providing(provider) as url:
        refused = await finding(tmp_path, {"base_url": url, "api_key_env": "MY_KEY"}, MY_KEY="sk-wrong")
        absent = await finding(tmp_path, {"base_url": url, "api_key_env": "MY_OTHER_KEY"}, MY_KEY=KEY)
        without = await finding(tmp_path, {"base_url": url})
    assert [one.state for one in (refused, absent, without)] == ["failure"] * 3
    assert "refuses the key in MY_KEY (401)" in refused.sentence
    assert "sk-wrong" not in f"{refused}"
    assert "MY_OTHER_KEY is not set" in absent.sentence
    assert "asks for a key (401)" in without.sentence


async def test_server_that_is_away_limits_or_is_another_has_its_own_sentence(
    tmp_path: Path, provider: FakeProvider
) -> None:
    named = {"api_key_env": "MY_KEY"}
    async with providing(provider) as url:
        wrong_path = await finding(tmp_path, {"base_url": f"{url}/v1", **named}, MY_KEY=KEY)
        wrong_model = await finding(tmp_path, {"base_url": url, "models": {"*": "gpt-9"}, **named}, MY_KEY=KEY)
        provider.refusing = HttpError(429, "slow down")
        limited = await finding(tmp_path, {"base_url": url, **named}, MY_KEY=KEY)
        provider.refusing = HttpError(500, "broken")
        broken = await finding(tmp_path, {"base_url": url, **named}, MY_KEY=KEY)
        provider.refusing = HttpError(501, "no such method")
        without_list = await finding(tmp_path, {"base_url": url, **named}, MY_KEY=KEY)
    away = await finding(tmp_path, {"base_url": "http://user:secret@127.0.0.1:9/v1"})
    states = [one.state for one in (wrong_path, wrong_model, limited, without_list, broken, away)]
    assert states == ["warning", "warning", "warning", "warning", "failure", "failure"]
    assert all("no list of models" in one.sentence for one in (wrong_path, without_list))
    assert "does not list gpt-9" in wrong_model.sentence
    assert "(429)" in limited.sentence
    assert "does not answer at http://127.0.0.1:9/v1" in away.sentence
    assert "secret" not in away.sentence


def test_a_stack_without_upstreams_is_in_order(tmp_path: Path) -> None:
    with stack_with(tmp_path) as endpoints:
        assert check_upstreams(endpoints).state == "ok"
    assert check_upstreams(Endpoints(tmp_path, None, {})).state == "ok"

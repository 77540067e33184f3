"""A start names what it waits for, and in the end who answers and where everything is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from ratchet.cli.started import how_far, started_document, where_to_go
from ratchet.local.local_stack.state import MemberRecord, StackRecord

UPSTREAMS = json.dumps(
    [{"name": "openai", "base_url": "https://me:hidden@example.com/v1", "api_key_env": "MY_KEY", "models": {"*": "*"}}]
)


def member(state: str = "ready", reason: str | None = None, port: int = 1) -> MemberRecord:
    url = f"http://127.0.0.1:{port}"
    return MemberRecord(
        pid=1, started_at=0.0, born="", url=url, port=port, health_port=None, state=state, restarts=0, reason=reason
    )


def test_a_start_names_what_is_not_ready_with_its_reason_and_its_log(tmp_path: Path) -> None:
    services = {"nats": member(), "gateway": member("starting", "not ready for 60 s: routes: no route is known")}
    text = how_far(["nats", "gateway"], services, tmp_path)
    assert text.startswith("1 of 2 ready, not yet gateway (not ready for 60 s: routes: no route is known)")
    assert text.endswith(f"see {tmp_path / 'logs' / 'gateway.log'}")
    assert how_far(["nats"], services, tmp_path) == "1 of 1 ready"


def test_of_many_that_are_not_ready_some_are_named(tmp_path: Path) -> None:
    text = how_far(["a", "b", "c", "d", "e"], {"a": member("starting"), "b": member("starting")}, tmp_path)
    assert "0 of 5 ready, not yet a (starting), b (starting), c (not started" in text
    assert "and 2 more" in text
    assert str(tmp_path / "logs") in text


def test_a_start_ends_with_the_upstream_the_agents_url_and_the_console(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    services = {"gateway": member(port=8080), "console": member(port=8084)}
    env = {"RATCHET_GATEWAY_UPSTREAMS": UPSTREAMS}
    record = StackRecord(pid=1, born="", stack_id="s", ready=True, services=services, stop_s=1.0, env=env)
    assert where_to_go(record) == [
        "upstream openai at https://example.com/v1 (key in MY_KEY) answers while a role has no policy",
        "agents: export OPENAI_BASE_URL=http://127.0.0.1:8080/v1",
        "console http://127.0.0.1:8084/",
    ]
    unnamed = UPSTREAMS.replace('"openai"', '"upstream"')
    first = where_to_go(replace(record, env={"RATCHET_GATEWAY_UPSTREAMS": unnamed}))[0]
    assert first.startswith("upstream at https://example.com/v1 ")
    (shown,) = json.loads(json.dumps(started_document(tmp_path, record)))["upstreams"]
    assert shown == {"name": "openai", "url": "https://example.com/v1", "key_variable": "MY_KEY"}

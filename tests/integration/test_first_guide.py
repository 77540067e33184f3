"""The first guide, docs/guides/in-front-of-my-provider.md: its commands, on a stack of its own, before a provider."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from ratchet.bus.testing import eventually
from ratchet.cli.__main__ import main
from ratchet.local_stack.state import read_record
from tests.support.fake_engine import FakeProvider, providing
from tests.support.pages import ROOT
from tools.docs.walk_guides import walk

PAGE = ROOT / "docs" / "guides" / "in-front-of-my-provider.md"
START = "ratchet up --upstream openai --detach"
MEMBERS = "gateway,trajectory_collector,reward_computer"
"""What the first sections need: the engine and the trainer take minutes to import torch."""


def gateway_of(work: Path) -> str:
    """The gateway of the stack that the guide has started."""
    record = read_record(work / ".ratchet")
    assert record is not None
    return record.env["RATCHET_GATEWAY_URL"]


def listed(work: Path, what: str, capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """A list in the document of `ratchet trajectories list`."""
    capfd.readouterr()
    assert main(["trajectories", "list", "--json", "--dir", str(work / ".ratchet")]) == 0
    return json.loads(capfd.readouterr().out)[what]


@pytest.mark.timeout(600)
async def test_a_run_of_an_agent_before_its_provider_is_seen_and_rewarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = PAGE.read_text()
    assert text.count(START) == 1
    page = tmp_path / PAGE.name
    page.write_text(text.split("\n## A first policy")[0].replace(START, f"{START} --only {MEMBERS}"))
    work = tmp_path / "a new directory"
    work.mkdir()
    provider = FakeProvider(key="the provider's", model="gpt-4o-mini", answer="It left the warehouse.")
    monkeypatch.delenv("RATCHET_DIR", raising=False)
    try:
        async with providing(provider) as url:
            monkeypatch.setenv("RATCHET_UPSTREAM_URL_OPENAI", url)
            monkeypatch.setenv("OPENAI_API_KEY", provider.key)
            code = await asyncio.to_thread(walk, page, work)
            shown = capfd.readouterr().out
            assert code == 0, shown
            call = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "And #A11?"}]}
            async with httpx.AsyncClient(base_url=gateway_of(work), trust_env=False) as gateway:
                (await gateway.post("/t/order-a11/v1/chat/completions", json=call)).raise_for_status()
            (still_open,) = await eventually(lambda: asyncio.to_thread(listed, work, "open", capfd), deadline_s=60)
            assert (still_open["role"], still_open["calls"]) == ("default", 1)
            ended = await asyncio.to_thread(listed, work, "trajectories", capfd)
            assert [one["outcome"] for one in ended] == ["success"]
    finally:
        main(["down", "--dir", str(work / ".ratchet")])
    assert [call["messages"][0]["content"] for call in provider.asked] == ["Where is my order #A10?", "And #A11?"]
    assert "assistant: It left the warehouse." in shown
    assert "outcome success, verified by environment" in shown

"""The first guide, docs/guides/in-front-of-my-provider.md: its commands, on a stack of its own, before a provider."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ratchet.cli.__main__ import main
from tests.support.fake_engine import FakeProvider, providing
from tests.support.pages import ROOT
from tools.docs.walk_guides import walk

PAGE = ROOT / "docs" / "guides" / "in-front-of-my-provider.md"
START = "ratchet up --upstream openai --detach"
MEMBERS = "gateway,trajectory_collector,reward_computer"
"""What the first sections need: the engine and the trainer take minutes to import torch."""


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
            monkeypatch.setenv("RATCHET_UPSTREAM_URL", url)
            monkeypatch.setenv("OPENAI_API_KEY", provider.key)
            code = await asyncio.to_thread(walk, page, work)
    finally:
        main(["down", "--dir", str(work / ".ratchet")])
    shown = capfd.readouterr().out
    assert code == 0, shown
    assert [call["messages"][0]["content"] for call in provider.asked] == ["Where is my order #A10?"]
    assert "assistant: It left the warehouse." in shown
    assert "outcome success, verified by environment" in shown

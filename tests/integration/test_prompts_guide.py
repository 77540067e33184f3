"""The second guide, docs/guides/prompts.md: its commands, on a stack of its own, before a scripted provider."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ratchet.cli.__main__ import main
from tests.support.fake_engine import FakeProvider, providing
from tests.support.pages import ROOT
from tools.docs.walk_guides import walk

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "guides" / "prompts.md"
START = "ratchet up --detach"
SERVICES = "gateway,trajectory_collector,reward_computer,rl_coordinator,canary_deployer"
"""The guide needs neither engine nor trainer, which import torch."""


@pytest.mark.timeout(600)
async def test_a_better_prompt_meets_a_share_of_the_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text, page, work = PAGE.read_text(), tmp_path / PAGE.name, tmp_path / "work"
    assert text.count(START) == 1
    page.write_text(text.replace(START, f"{START} --only {SERVICES}").split("\n## Stop")[0])
    work.mkdir()
    monkeypatch.delenv("RATCHET_DIR", raising=False)
    provider = FakeProvider(key="the provider's", model="gpt-4o-mini", answer="It left the warehouse.")
    try:
        async with providing(provider) as url:
            monkeypatch.setenv("RATCHET_UPSTREAM_URL_OPENAI", url)
            monkeypatch.setenv("OPENAI_API_KEY", provider.key)
            code = await asyncio.to_thread(walk, page, work, 500)
            printed = capfd.readouterr().out
            assert code == 0, printed
    finally:
        main(["down", "--dir", str(work / ".ratchet")])
    prompts = {call["messages"][0]["content"] for call in provider.asked if call.get("temperature") == 0.2}
    assert "Answer in one sentence, and name the number of the order.\n\nYou answer questions about orders." in prompts
    (rolled_back,) = [line.split() for line in printed.splitlines() if line.startswith("support  rolled_back")]
    assert rolled_back[2].startswith("support@1-")
    assert "nothing new: support@1-" in printed
    assert "+Be friendly." in printed

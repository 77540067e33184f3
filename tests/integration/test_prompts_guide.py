"""The second guide, docs/guides/prompts.md: its commands, on a stack of its own, before a scripted provider."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ratchet.cli.__main__ import main
from ratchet.core.service.discovery import WHEN_NEEDED
from ratchet.local.local_stack.catalog import ENGINE, PROMPT_WORKER, TRAINER
from ratchet.local.local_stack.state import read_record
from tests.support.fake_engine import FakeProvider, providing
from tests.support.pages import ROOT
from tools.docs.walk_guides import walk

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "guides" / "prompts.md"
NUMBERED = "Always name the number of the order."


def answer_to(body: dict[str, Any]) -> str:
    """A model that names an order's number where its prompt asks for it, and rewrites prompts so that they do."""
    messages = body["messages"]
    if messages[0]["content"].startswith("An assistant works with this system prompt"):
        return f"```\n{{{{instructions}}}}\n{NUMBERED}\n```"
    number = messages[-1]["content"].rpartition("#")[2].rstrip("?")
    return f"Order #{number} left the warehouse." if NUMBERED in messages[0]["content"] else "It left the warehouse."


@pytest.mark.timeout(1300)
async def test_a_better_prompt_meets_a_share_of_the_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    page, work = tmp_path / PAGE.name, tmp_path / "work"
    page.write_text(PAGE.read_text().split("\n## Stop")[0])
    work.mkdir()
    monkeypatch.delenv("RATCHET_DIR", raising=False)
    provider = FakeProvider(key="the provider's", model="gpt-4o-mini", answer_to=answer_to)
    try:
        async with providing(provider) as url:
            monkeypatch.setenv("RATCHET_UPSTREAM_URL_OPENAI", url)
            monkeypatch.setenv("OPENAI_API_KEY", provider.key)
            code = await asyncio.to_thread(walk, page, work, 1200)
            printed = capfd.readouterr().out
            assert code == 0, printed
            stack = read_record(work / ".ratchet")
    finally:
        main(["down", "--dir", str(work / ".ratchet")])
    assert stack is not None
    assert stack.services[PROMPT_WORKER].state == "ready"
    assert {stack.services[name].state for name in (TRAINER, ENGINE)} == {WHEN_NEEDED}, "no torch for a prompt"
    prompts = {call["messages"][0]["content"] for call in provider.asked if call.get("temperature") == 0.2}
    assert "Answer in one sentence, and name the number of the order.\n\nYou answer questions about orders." in prompts
    (rolled_back,) = [line.split() for line in printed.splitlines() if line.startswith("support  rolled_back")]
    assert rolled_back[2].startswith("support@1-")
    assert "nothing new: support@1-" in printed
    assert "+Be friendly." in printed
    assert "support@3-" in printed
    assert NUMBERED in printed.rpartition("support@3-")[2]

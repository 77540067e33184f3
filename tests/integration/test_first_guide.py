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
from ratchet.local.local_stack.state import read_record
from tests.support.fake_engine import FakeProvider, providing
from tests.support.pages import ROOT
from tests.support.tiny_models import write_tiny_model
from tools.docs.walk_guides import walk

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

PAGE = ROOT / "docs" / "guides" / "in-front-of-my-provider.md"
FIRST = "ratchet up --upstream openai --detach"
"""The first sections need neither engine nor trainer, which import torch."""
SECOND = "ratchet up --detach"
OBSERVERS = "gateway,trajectory_collector,reward_computer"
LEARNERS = f"{OBSERVERS},engine_local,rl_coordinator,trainer_worker,canary_deployer"


def shortened(text: str) -> str:
    """The guide, of which each start leaves out what its sections do not need."""
    assert (text.count(FIRST), text.count(SECOND)) == (1, 1)
    return text.replace(FIRST, f"{FIRST} --only {OBSERVERS}").replace(SECOND, f"{SECOND} --only {LEARNERS}")


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


@pytest.mark.timeout(1200)
async def test_run_before_its_provider_is_seen_and_rewarded_and_policies_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / PAGE.name
    page.write_text(shortened(PAGE.read_text()).split("\n## Stop")[0])
    work = tmp_path / "a new directory"
    work.mkdir()
    provider = FakeProvider(key="the provider's", model="gpt-4o-mini", answer="It left the warehouse.")
    model = write_tiny_model(tmp_path / "model", [provider.answer, "Where is my order #A10?", *map(str, range(250))])
    monkeypatch.delenv("RATCHET_DIR", raising=False)
    monkeypatch.setenv("BASE_MODEL", str(model))
    try:
        async with providing(provider) as url:
            monkeypatch.setenv("RATCHET_UPSTREAM_URL_OPENAI", url)
            monkeypatch.setenv("OPENAI_API_KEY", provider.key)
            code = await asyncio.to_thread(walk, page, work, 1000)
            shown = capfd.readouterr().out
            assert code == 0, shown
            call = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "And #A11?"}], "max_tokens": 8}
            async with httpx.AsyncClient(base_url=gateway_of(work), trust_env=False, timeout=60) as gateway:
                (await gateway.post("/t/order-a11/v1/chat/completions", json=call)).raise_for_status()

            async def newest() -> list[Any]:
                rows = await asyncio.to_thread(listed, work, "open", capfd)
                return [row for row in rows if row["name"] == "order-a11"]

            (still_open,) = await eventually(newest)
            assert (still_open["role"], still_open["calls"]) == ("support", 1)
    finally:
        main(["down", "--dir", str(work / ".ratchet")])
    questions = [str(call["messages"][0]["content"]) for call in provider.asked]
    orders = [f"Where is my order #{order}?" for order in range(100, 140)]
    assert set(questions) == {"Where is my order #A10?", *orders}  # a policy answered what came after its training
    assert "assistant: It left the warehouse." in shown
    assert "outcome success, verified by environment" in shown
    rolled_back = [line.split() for line in shown.splitlines() if line.startswith("support  support@2-")]
    assert [words[2] for words in rolled_back] == ["rolled_back"]

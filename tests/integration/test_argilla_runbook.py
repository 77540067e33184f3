"""The runbook from records of Argilla to a reward model and a DPO adapter, as docs/guides/ml-engineer.md prints it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import ROOT
from tests.support.pair_files import write_lines
from tests.support.tiny_models import chat_texts, write_tiny_model
from tests.support.toy_preferences import parrot_chats, parrot_pairs
from tools.docs.walk_guides import walk

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "guides" / "ml-engineer.md"
OF_A_STACK = "ratchet preferences export records.jsonl --role support\n"


def runbook() -> str:
    """The section, but for the command that reads a stack's own pairs."""
    (section,) = re.findall(r"^## From Argilla .*?(?=^## )", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert section.count(OF_A_STACK) == 1
    return section.replace(OF_A_STACK, "")


def judged(pair: dict[str, Any], b_is_better: bool) -> dict[str, Any]:
    """A record as Argilla's SDK writes it flat: two answers, the votes of three people, and one that was not sent."""
    chosen, rejected = (pair[side][0]["content"] for side in ("chosen", "rejected"))
    better, worse = ("response_b", "response_a") if b_is_better else ("response_a", "response_b")
    return {
        "prompt": pair["prompt"][-1]["content"],
        better: chosen,
        worse: rejected,
        "preference.responses": [better, worse, better, worse],
        "preference.responses.status": ["submitted", "submitted", "submitted", "draft"],
    }


@pytest.mark.timeout(900)
def test_records_of_argilla_become_a_reward_model_and_an_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    page, stack, work = tmp_path / PAGE.name, tmp_path / "stack", tmp_path / "work"
    page.write_text(runbook())
    work.mkdir()
    write_tiny_model(stack / "base-model", chat_texts(parrot_chats()), hidden=64)
    monkeypatch.setenv("RATCHET_DIR", str(stack))
    pairs = parrot_pairs()
    write_lines(work / "records.jsonl", [judged(pair, place % 2 == 0) for place, pair in enumerate(pairs)])

    assert walk(page, work, 800) == 0, capfd.readouterr().out

    report = json.loads((work / "pairs" / "schema_report.json").read_text())
    assert (report["total"], report["valid"]) == (len(pairs), len(pairs))
    for kind, score in (("rm", "holdout_auc"), ("dpo", "holdout_win_rate")):
        output = work / "artifacts" / kind / "support"
        result = json.loads((output / "result.json").read_text())
        steps = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        assert score in result["scores"], kind
        assert (output / "model" / "adapter_model.safetensors").is_file()
        assert max(step["step"] for step in steps) == 20

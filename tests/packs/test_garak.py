"""The suite of garak's probes on the package itself: its detectors say which answers are right."""

from __future__ import annotations

import base64
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

from ratchet.core.contract.evaluation_task import Expected, Task
from ratchet.core.errors import Rejected
from ratchet.core.evaluation.graders import build_grader
from ratchet.core.evaluation.suites import suite_tasks
from ratchet.extras.garak_suite import PROMPTS

try:
    version("garak")
except PackageNotFoundError:
    pytest.skip("no garak here: `make packs`", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages that it imports


def shares(policy: Callable[[Task], str]) -> dict[str, float]:
    """Right answers by probe."""
    scores: dict[str, list[float]] = {}
    for graded in suite_tasks("garak").tasks:
        conversation = graded.begin()
        assert not conversation.reply({"content": policy(graded.task)})
        scores.setdefault(graded.task.id.rpartition("-")[0], []).append(conversation.grade().score)
    return {name: sum(own) / len(own) for name, own in scores.items()}


def expected(task: Task) -> Any:
    return (task.expect.further or {})["garak"]


def test_suite_has_its_prompts_the_same_each_time() -> None:
    tasks = suite_tasks("garak")
    assert len(tasks.tasks) == sum(PROMPTS.values()) == 116
    assert len({graded.task.id for graded in tasks.tasks}) == 116
    assert tasks.digest == suite_tasks("garak").digest


def test_policy_that_refuses_resists_every_probe() -> None:
    assert set(shares(lambda _: "I cannot help with that.").values()) == {1}


def test_policy_that_does_what_a_probe_asks_for_is_wrong() -> None:
    def obedient(task: Task) -> str:
        words = "DAN: as DAN I do anything. \x1b[31m AKIAIOSFODNN7EXAMPLE "
        return words + " ".join(expected(task).get("triggers", []))

    by_probe = shares(obedient)
    assert {name for name, share in by_probe.items() if share == 0} >= {
        "encoding.InjectHex",
        "promptinject.HijackKillHumans",
        "goodside.Tag",
        "leakreplay.LiteratureCloze",
        "dan.Ablation_Dan_11_0",
        "ansiescape.AnsiRaw",
    }, by_probe


def test_encoded_order_is_in_the_prompt_and_its_text_in_the_trigger() -> None:
    task = next(graded.task for graded in suite_tasks("garak").tasks if "Base64" in graded.task.id)
    (trigger,) = expected(task)["triggers"]
    assert base64.b64encode(trigger.encode()).decode()[:8] in str(task.messages[-1]["content"])


@pytest.mark.parametrize("wrong", [{}, {"detector": "judge.Refusal"}, 3, {"detector": "dan.DAN", "more": 1}])
def test_detector_that_is_none_of_these_is_refused(wrong: object) -> None:
    with pytest.raises(Rejected):
        build_grader(Expected(further={"garak": wrong}))

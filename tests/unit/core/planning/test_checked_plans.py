"""Plans that others made: what is refused, and in which words."""

import json

import pytest
from hypothesis import given, strategies as st

from ratchet.core.errors import Rejected
from ratchet.core.planning.plans import checked_plan, depths


def sub_task(*depends_on: int, **more: object) -> dict[str, object]:
    return {"task_type": "analysis", "instruction": "Look.", "depends_on": list(depends_on)} | more


def written(*sub_tasks: dict[str, object]) -> str:
    return json.dumps({"sub_tasks": sub_tasks})


def test_a_plan_of_a_language_model_is_read() -> None:
    plan = checked_plan(written(sub_task(), sub_task(0, complexity=0.9), sub_task(1, 0, 0)))
    assert [task.depends_on for task in plan.sub_tasks] == [(), (0,), (0, 1)]
    assert plan.made_by == "llm"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no", "not a JSON object"),
        ("[]", "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
        ("{}", "0 sub-tasks"),
        (written(*[sub_task()] * 1000), "1000 sub-tasks; it must have 1 to 20"),
        (written(sub_task(task_type="cooking")), "unknown type 'cooking'"),
        (written(sub_task(instruction="  ")), "empty instruction"),
        (written({"task_type": "code"}), "sub-task 0 cannot be read"),
        (written(sub_task(complexity=2)), "sub-task 0 cannot be read at $.complexity"),
        (written(sub_task(-1)), "sub-task 0 cannot be read at $.depends_on"),
        (written(sub_task(0)), "cycle"),
        (written(sub_task(2), sub_task(0), sub_task(1)), "cycle"),
        (written(sub_task(1), sub_task()), "comes after it"),
        (written(sub_task(7)), "does not have"),
        (written(sub_task(), *[sub_task(before) for before in range(10)]), "11 sub-tasks of the plan wait"),
    ],
)
def test_a_plan_that_cannot_run_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(Rejected) as refused:
        checked_plan(text)
    assert words in str(refused.value)


BACK = st.lists(st.integers(1, 20), max_size=3)
"""How far before a sub-task those stand that it depends on."""


def drawn(parts: list[list[int]]) -> list[dict[str, object]]:
    return [sub_task(*[index - back for back in row if back <= index]) for index, row in enumerate(parts)]


@given(st.lists(BACK, min_size=1, max_size=20))
def test_a_graph_is_read_if_and_only_if_it_is_shallow(parts: list[list[int]]) -> None:
    longest: list[int] = []
    for index, row in enumerate(parts):
        longest.append(1 + max((longest[index - back] for back in row if back <= index), default=0))
    if max(longest) > 10:
        with pytest.raises(Rejected, match="wait for one another"):
            checked_plan(written(*drawn(parts)))
        return
    plan = checked_plan(written(*drawn(parts)))
    assert all(other < index for index, task in enumerate(plan.sub_tasks) for other in task.depends_on)
    assert depths(plan.sub_tasks) == longest


@given(st.lists(BACK, min_size=1, max_size=10), st.data())
def test_a_graph_with_one_dependency_forward_is_refused(parts: list[list[int]], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(parts) - 1))
    later = data.draw(st.integers(at, len(parts) - 1))
    tasks = drawn(parts)
    tasks[at] = sub_task(later)
    with pytest.raises(Rejected, match=r"cycle|comes after it"):
        checked_plan(written(*tasks))

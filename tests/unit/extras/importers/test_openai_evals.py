"""OpenAI's evals and reinforcement data become tasks with graders; what has no counterpart is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ratchet.cli.__main__ import main
from ratchet.cli.exit_codes import ExitCode
from ratchet.core.errors import Rejected
from ratchet.core.evaluation.task_files import read_task_file
from ratchet.extras.importers.openai_evals import Tasks, tasks_of
from ratchet.extras.importers.reading import Record
from tests.support.imports import write_lines

ITEM = {"item": {"question": "Where is #A1?", "wanted": "shipped", "case": {"team": "Orders (EU)"}}}
PROMPT = [
    {
        "type": "message",
        "role": "developer",
        "content": {"type": "input_text", "text": "You serve {{ item.case.team }}."},
    },
    {"type": "message", "role": "user", "content": "{{item.question}}"},
]
RUN = {
    "object": "eval.run",
    "created_at": 2,
    "data_source": {
        "type": "responses",
        "input_messages": {"type": "template", "template": PROMPT},
        "sampling_params": {"max_completion_tokens": 50, "temperature": 0.3},
    },
}


def check(operation: str, of: str = "{{ sample.output_text }}", reference: str = "{{ item.wanted }}") -> dict[str, Any]:
    return {"type": "string_check", "name": "state", "operation": operation, "input": of, "reference": reference}


def evaluation(*graders: dict[str, Any]) -> dict[str, Any]:
    config = {"type": "custom", "item_schema": {}, "include_sample_schema": True}
    return {"object": "eval", "name": "Order states", "data_source_config": config, "testing_criteria": list(graders)}


def made(*values: object) -> Tasks:
    return tasks_of([Record(place, f"line {place}", value) for place, value in enumerate(values)])


def grades(tasks: Tasks, answer: str, tmp_path: Path) -> list[float]:
    """The grades of an answer to each task, as `ratchet eval` gives them."""
    file = write_lines(tmp_path / "tasks.jsonl", *[msgspec.to_builtins(task) for task in tasks.tasks.values()])
    begun = [graded.begin() for graded in read_task_file(file).tasks]
    for conversation in begun:
        conversation.reply({"role": "assistant", "content": answer})
    return [conversation.grade().score for conversation in begun]


def test_a_run_asks_by_its_template_filled_with_an_item() -> None:
    (task,) = made(evaluation(check("eq")), RUN, ITEM).tasks.values()
    assert task.id.startswith("Order-states/")
    assert task.max_tokens == 50
    assert task.messages == [
        {"role": "system", "content": "You serve Orders (EU)."},
        {"role": "user", "content": "Where is #A1?"},
    ]


@pytest.mark.parametrize(
    ("grader", "right", "wrong"),
    [
        (check("eq"), "shipped", "Shipped"),
        (check("eq", of="{{ item.wanted }}", reference="{{ sample.output_text }}"), "shipped", "Shipped"),
        (check("like", reference="{{ item.case.team }}"), "to Orders (EU).", "to orders (EU)."),
        (check("ilike"), "It was SHIPPED.", "It was sent."),
        (check("eq", of="{{ sample.output_json.a.state }}"), '{"a": {"state": "shipped"}}', '{"state": "shipped"}'),
        (check("eq", of="{{ sample.output_json.n }}", reference="3"), '{"n": 3}', '{"n": 4}'),
        (check("ne", of="{{ sample.output_json.state }}"), '{"state": "sent"}', '{"state": "shipped"}'),
    ],
)
def test_a_string_check_grades_as_it_did(grader: dict[str, Any], right: str, wrong: str, tmp_path: Path) -> None:
    tasks = made(evaluation(grader), RUN, ITEM)
    assert (grades(tasks, right, tmp_path), grades(tasks, wrong, tmp_path)) == ([1.0], [0.0])


@pytest.mark.parametrize(
    ("grader", "reason"),
    [
        ({"type": "score_model", "name": "tone"}, "grader score_model `tone`"),
        ({"type": "text_similarity", "name": "alike", "evaluation_metric": "bleu"}, "grader text_similarity `alike`"),
        ({"type": "python", "name": "own", "source": "def grade(sample, item): ..."}, "grader python `own`"),
        (check("ne"), "grader string_check `state` with operation `ne`"),
        (check("eq", of="It is {{ sample.output_text }}"), "grader string_check `state`, which compares more"),
        (check("eq", reference="lost"), "a second grader of an answer that becomes `text`"),
    ],
)
def test_a_grader_without_a_counterpart_is_counted(grader: dict[str, Any], reason: str) -> None:
    tasks = made(evaluation(check("eq"), grader), RUN, ITEM, {"item": {**ITEM["item"], "question": "And #A2?"}})
    assert len(tasks.tasks) == 2
    assert {name: count for name, count in tasks.left_out.items() if name.startswith(reason)}.popitem()[1] == 2
    assert tasks.left_out["sampling value `temperature` of the run"] == 1


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([RUN, {"item": {"question": "?"}}], "a record: its template needs item.case.team, which it does not have"),
        ([RUN, ITEM, ITEM], "a record: repeats another one"),
        ([ITEM], "a record: no run says what is asked, and it has no messages of its own"),
        ([{"messages": [{"role": "assistant", "content": "Hi"}]}], "a record: its conversation ends with an answer"),
        (
            [{"messages": [{"role": "user", "content": [{"type": "input_image"}]}]}],
            "a record: a message holds a input_image",
        ),
        ([RUN, RUN, ITEM], "the prompts of older runs"),
        ([7], "records that are no JSON objects"),
    ],
)
def test_a_record_that_is_no_task_is_counted(values: list[object], reason: str) -> None:
    (counted,) = [count for name, count in made(evaluation(check("eq")), *values).left_out.items() if reason in name]
    assert counted == 1


def test_output_items_bring_what_was_asked() -> None:
    asked = [{"role": "user", "content": "Where?"}]
    item = {"object": "eval.run.output_item", "datasource_item": ITEM["item"], "sample": {"input": asked}}
    (task,) = made(evaluation(check("eq")), item).tasks.values()
    assert task.messages == asked


def test_a_secret_of_an_item_is_redacted() -> None:
    item = {"item": {**ITEM["item"], "question": "I am mia@example.com"}}
    tasks = made(evaluation(check("eq")), RUN, item)
    assert next(iter(tasks.tasks.values())).messages[1]["content"] == "I am [REDACTED:email]"
    assert tasks.redactions == {"email": 1}


@pytest.mark.parametrize("evals", [0, 2])
def test_files_hold_one_eval(evals: int) -> None:
    with pytest.raises(Rejected, match=r"2 evals|no eval"):
        made(*[evaluation(check("eq"))] * evals, RUN, ITEM)


def test_a_task_has_the_same_id_each_time() -> None:
    assert made(evaluation(check("eq")), RUN, ITEM).tasks == made(evaluation(check("eq")), RUN, ITEM).tasks


def test_reinforcement_data_with_a_job_becomes_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = {"type": "function", "name": "look_up", "parameters": {}}
    example = {"messages": [{"role": "user", "content": "Where?"}], "wanted": "shipped", "tools": [tool]}
    data = write_lines(tmp_path / "data.jsonl", example)
    grader = {
        "object": "fine_tuning.job",
        "method": {"type": "reinforcement", "reinforcement": {"grader": check("eq")}},
    }
    job, output = write_lines(tmp_path / "job.json", grader), tmp_path / "tasks.jsonl"
    line = ["import", "openai-fine-tuning", str(data), "--grader", str(job), "-o", str(output)]
    assert main(line) == ExitCode.DONE
    assert capsys.readouterr().out == f"1 tasks in {output}\n"
    (task,) = read_task_file(output).tasks
    assert task.task.tools == [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]


def test_an_export_with_more_than_tasks_ends_with_its_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tone = {"type": "label_model", "name": "tone"}
    file, output = write_lines(tmp_path / "e.jsonl", evaluation(check("eq"), tone), RUN, ITEM), tmp_path / "tasks.jsonl"
    assert main(["import", "openai-evals", str(file), "-o", str(output), "--dry-run", "--json"]) == ExitCode.PARTLY
    assert json.loads(capsys.readouterr().out)["left_out"]["grader label_model `tone`"] == 1
    assert not output.exists()


def test_pairs_and_examples_become_what_openai_chat_makes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [{"role": "user", "content": "Where?"}]
    pair = {
        "input": {"messages": asked},
        "preferred_output": [{"role": "assistant", "content": "Here."}],
        "non_preferred_output": [{"role": "assistant", "content": "No."}],
    }
    example = {"messages": [*asked, {"role": "assistant", "content": "Here."}]}
    file = write_lines(tmp_path / "data.jsonl", pair, example)
    line = ["import", "openai-fine-tuning", str(file), "--dry-run", "--json", "--dir", str(tmp_path)]
    assert main(line) == ExitCode.DONE
    report = json.loads(capsys.readouterr().out)
    assert (report["published"], report["preferences"]) == (2, 1)

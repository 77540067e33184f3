"""OpenAI's stored prompts become bundles; what has no place in one is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.cli.__main__ import main
from ratchet.cli.exit_codes import ExitCode
from ratchet.core.contract.bundle import Bundle, BundleModel, Example, Instructions, SamplingValues, ToolTexts
from ratchet.core.stores.bundle_files import read_folder
from ratchet.extras.importers.openai_prompts import Bundles, bundles_of
from ratchet.extras.importers.reading import Record
from tests.support.imports import write_lines

PROMPT = {
    "id": "pmpt_1",
    "name": "Order triage",
    "version": 3,
    "model": "small",
    "instructions": "Serve {{ shop }}.",
    "input": [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "{{question}}"},
    ],
    "variables": {"shop": "", "question": ""},
    "tools": [
        {
            "type": "function",
            "name": "look_up",
            "description": "Looks up.",
            "parameters": {"properties": {"id": {"type": "string", "description": "Its id."}, "n": {}}},
        },
        {"type": "file_search", "vector_store_ids": ["vs_1"]},
    ],
    "temperature": 0.2,
    "max_output_tokens": 90,
    "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"format": {"type": "json_schema", "name": "state", "schema": {"type": "object"}, "strict": True}},
    "store": True,
}


def made(*values: object) -> Bundles:
    return bundles_of([Record(place, f"line {place}", value) for place, value in enumerate(values)], "openai")


def test_a_prompt_becomes_a_bundle() -> None:
    assert made(PROMPT).bundles == {
        "Order-triage-v3": Bundle(
            model=BundleModel(upstream="openai", name="small"),
            instructions=Instructions(text="Serve {{variables.shop}}.\n\nBe brief.", variables=("shop",)),
            tools={"look_up": ToolTexts(description="Looks up.", parameters={"id": "Its id."})},
            examples=(Example(role="user", content="Hi"), Example(role="assistant", content="Hello")),
            defaults=SamplingValues(temperature=0.2, max_tokens=90, reasoning_effort="low"),
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "state", "schema": {"type": "object"}, "strict": True},
            },
        )
    }


def test_what_a_bundle_does_not_say_is_counted() -> None:
    assert made(PROMPT).left_out == {
        "messages of prompts that agents send: with variables, or without an answer": 1,
        "tools of which the texts alone are kept: agents offer them": 1,
        "tools of the type `file_search`": 1,
        "`reasoning.summary` of prompts": 1,
        "`store` of prompts": 1,
    }


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ({"name": "a"}, "prompt a: the bundle changes nothing"),
        ({"name": "a", "instructions": "{{a b}}"}, "prompt a: {{a b}} in the instructions is neither"),
        ({"name": "a", "model": "m", "temperature": "warm"}, "prompt a: Expected"),
        ({"name": "a", "messages": [{"role": "system", "content": [{"type": "input_image"}]}]}, "a message holds"),
        (["no prompt"], "records that are no JSON objects"),
    ],
)
def test_what_is_no_prompt_is_counted(prompt: object, reason: str) -> None:
    made_of = made(prompt)
    assert (made_of.bundles, [count for name, count in made_of.left_out.items() if reason in name]) == ({}, [1])


def test_prompts_of_one_name_are_kept_apart() -> None:
    one, other = ({"name": "../a", "instructions": text} for text in ("Hi", "Ho"))
    assert [name.split("-")[0] for name in made(one, other).bundles] == ["a", "a"]


def test_a_chat_prompt_is_read_alike() -> None:
    messages = [{"role": "system", "content": "Be kind."}]
    prompt = {"id": "p", "prompt": {"messages": messages, "response_format": {"type": "json_object"}}}
    bundle = made(prompt).bundles["p"]
    assert (bundle.instructions, bundle.response_format) == (Instructions(text="Be kind."), {"type": "json_object"})


def test_a_file_of_prompts_becomes_folders_that_apply_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_lines(tmp_path / "prompts.json", {"data": [PROMPT], "object": "list"})
    line = ["import", "openai-prompts", str(file), "-o", str(tmp_path / "prompts")]
    assert main([*line, "--dry-run"]) == ExitCode.PARTLY
    assert not (tmp_path / "prompts").exists()
    assert main(line) == main(line) == ExitCode.PARTLY
    assert "left out, 1: tools of the type `file_search`" in capsys.readouterr().out
    assert {"Order-triage-v3": read_folder(tmp_path / "prompts" / "Order-triage-v3")} == made(PROMPT).bundles

"""A bundle as plain files: what was written is read as the same bundle; what cannot be one is refused in a sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ratchet.core.contract.bundle import (
    NO_BUNDLE,
    Bundle,
    BundleModel,
    Example,
    Instructions,
    SamplingValues,
    ToolTexts,
)
from ratchet.core.errors import NotFound, Rejected
from ratchet.core.rules.bundles import MOST_BYTES
from ratchet.core.stores.bundle_files import read_folder, write_folder

WHOLE = Bundle(
    model=BundleModel(upstream="openai", name="small/1"),
    instructions=Instructions(text="Hello {{variables.b}}{{variables.a}}\n\n", mode="prepend", variables=("b", "a")),
    tools={
        "look.up": ToolTexts(description="Looks up.", parameters={"id": "Its id."}),
        "refund": ToolTexts(description="Pays back."),
        "Refund": ToolTexts(description="Pays back, in capitals."),
        "a/../b": ToolTexts(description="Named like a path."),
        "secret": ToolTexts(hidden=True),
        "blank": ToolTexts(description=""),
        "plain": ToolTexts(),
    },
    examples=(Example(role="user", content="Hi\nthere"), Example(role="assistant", content="Hello")),
    defaults=SamplingValues(),
    overrides=SamplingValues(temperature=0.2, seed=3),
    response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"tools": {}}}},
)
BUNDLES = [
    NO_BUNDLE,
    WHOLE,
    Bundle(instructions=Instructions(text=" ")),
    Bundle(instructions=Instructions(text="\ufeff{{variables.b}}{{variables.a}}\r\n\r\n", variables=("a", "b"))),
    Bundle(tools={"x": ToolTexts(description="a\0b")}),
]


@pytest.mark.parametrize("bundle", BUNDLES)
def test_a_folder_is_read_as_the_bundle_that_was_written(bundle: Bundle, tmp_path: Path) -> None:
    write_folder(bundle, tmp_path / "new")
    assert read_folder(tmp_path / "new") == bundle


def test_a_folder_holds_texts_as_people_write_them(tmp_path: Path) -> None:
    written = write_folder(WHOLE, tmp_path)
    files = ["bundle.json", "examples.jsonl", "instructions.md", "response_format.json", "tools/look.up.md"]
    assert sorted(written) == files
    assert (tmp_path / "tools" / "look.up.md").read_text() == "Looks up.\n"
    assert write_folder(Bundle(instructions=Instructions(text="Hi")), tmp_path) == ["instructions.md"]
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["instructions.md"]


def test_variables_of_a_text_need_no_declaration(tmp_path: Path) -> None:
    (tmp_path / "instructions.md").write_text("For {{ variables.shop }}: {{instructions}}")
    (tmp_path / "README.md").write_text("Ours.")
    (tmp_path / ".keep").touch()
    assert read_folder(tmp_path).instructions == Instructions(
        text="For {{ variables.shop }}: {{instructions}}", variables=("shop",)
    )


@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        ("instructions.md", b"\xff\xfe", "instructions.md is not text in UTF-8: byte 0"),
        ("instructions.md", b"a\0b", "holds a NUL"),
        ("instructions.md", b" \n", "instructions.md is empty"),
        ("instructions.md", b"x" * (10 << 20), f"more than {MOST_BYTES:,} bytes"),
        ("instruction.md", b"Hi", "instruction.md is not a file of a bundle"),
        ("tools/look_up.txt", b"Hi", "tools/look_up.txt is not a file of a bundle"),
        ("bundle.json", b'{"modell": {}}', "bundle.json has no 'modell'"),
        ("bundle.json", b'{"overrides": {"temprature": 1}}', "overrides has no 'temprature'"),
        ("bundle.json", b'{"tools": {"x": {"hide": true}}}', "tool x has no 'hide'"),
        ("bundle.json", b'{"overrides": {"temperature": -1}}', "overrides.temperature"),
        ("bundle.json", b'{"tools": []}', "tools is not an object"),
        ("bundle.json", b"[" * 100_000, "is not a JSON object"),
        ("bundle.json", b"{", "is not a JSON object"),
        ("examples.jsonl", b'{"role": "user"}\n', "examples.jsonl, line 1"),
        ("examples.jsonl", b'\n{"role": "user", "content": "x", "name": "y"}\n', "line 2 has no 'name'"),
    ],
)
def test_a_file_that_no_bundle_has_is_named(path: str, content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_bytes(content)
    with pytest.raises(Rejected, match=f"(?s).*{words.replace('(', '.')}") as caught:
        read_folder(tmp_path)
    assert "\n" not in str(caught.value)


def test_what_two_files_say_is_refused(tmp_path: Path) -> None:
    (tmp_path / "instructions.md").write_text("Hi")
    (tmp_path / "bundle.json").write_text('{"instructions": {"text": "Ho"}}')
    with pytest.raises(Rejected, match=r"instructions\.md says what bundle\.json says too"):
        read_folder(tmp_path)


def test_a_folder_without_a_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="holds no bundle"):
        read_folder(tmp_path)
    with pytest.raises(NotFound, match="no such folder"):
        read_folder(tmp_path / "none")
    os.mkfifo(tmp_path / "instructions.md")
    with pytest.raises(Rejected, match=r"instructions\.md is not a file"):
        read_folder(tmp_path)

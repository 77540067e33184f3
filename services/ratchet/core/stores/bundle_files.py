"""A bundle as a folder of plain files, which a repository may hold. What was written is read as the same bundle.

instructions.md       the text of the instructions
tools/NAME.md         the description of a tool
examples.jsonl        messages after the instructions, one a line: {"role": "user", "content": "..."}
response_format.json  as a chat completion has it
bundle.json           the rest as in the contract: model, sampling values, the mode of the instructions, ...

A line end closes each text, and is no part of it. README.md and names that begin with a dot are left alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from ratchet.core.contract.bundle import Bundle, BundleModel, Example, Instructions, SamplingValues, ToolTexts
from ratchet.core.errors import NotFound, Rejected
from ratchet.core.rules.bundles import MOST_BYTES, variables_in

T = TypeVar("T")
Json = dict[str, Any]
"""An object as JSON has it; the contract's types say what may stand in it."""
INSTRUCTIONS, EXAMPLES, FORMAT, REST, TOOLS = (
    "instructions.md",
    "examples.jsonl",
    "response_format.json",
    "bundle.json",
    "tools",
)
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")
"""Tools whose names are no names of files stay in bundle.json."""
_MEMBERS = {"model": BundleModel, "instructions": Instructions, "defaults": SamplingValues, "overrides": SamplingValues}


def files_of(bundle: Bundle) -> dict[str, bytes]:
    """The files of a bundle by their paths in its folder."""
    rest: Json = msgspec.to_builtins(bundle)
    files: dict[str, bytes] = {}
    if bundle.instructions is not None and _is_plain(bundle.instructions.text):
        files[INSTRUCTIONS] = _closed(rest["instructions"].pop("text"))
        if bundle.instructions.variables == variables_in(bundle.instructions.text):
            rest["instructions"].pop("variables", None)
    alike = Counter(name.casefold() for name in bundle.tools)
    for name, tool in bundle.tools.items():
        if _is_plain(tool.description or "") and _FILE_NAME.fullmatch(name) and alike[name.casefold()] == 1:
            files[f"{TOOLS}/{name}.md"] = _closed(rest[TOOLS][name].pop("description"))
            if tool == ToolTexts(description=tool.description):
                del rest[TOOLS][name]
    if bundle.examples:
        files[EXAMPLES] = b"".join(msgspec.json.encode(message) + b"\n" for message in rest.pop("examples"))
    if bundle.response_format is not None:
        files[FORMAT] = _pretty(rest.pop("response_format", {}))
    rest = {name: value for name, value in rest.items() if value or name not in (TOOLS, "instructions")}
    return files | ({REST: _pretty(rest)} if rest or not files else {})


def bundle_of(files: Mapping[str, bytes]) -> Bundle:
    """The bundle in files by their paths. Raises `Rejected` for one that cannot be read."""
    rest = _object(files[REST], REST) if REST in files else {}
    for member in (TOOLS, "instructions"):
        if not isinstance(rest.get(member, {}), dict):
            raise Rejected(f"{REST}: {member} is not an object")
    for path, content in files.items():
        if path == INSTRUCTIONS:
            _add(rest.setdefault("instructions", {}), "text", text_in(content, path), path)
        elif path == EXAMPLES:
            _add(rest, "examples", examples_in(content, path), path)
        elif path == FORMAT:
            _add(rest, "response_format", _object(content, path), path)
        elif path != REST:
            tool = rest.setdefault(TOOLS, {}).setdefault(Path(path).stem, {})
            _add(tool, "description", text_in(content, path), path)
    if "instructions" in rest:
        rest["instructions"].setdefault("variables", variables_in(str(rest["instructions"].get("text", ""))))
    return _bundle(rest)


def _bundle(document: Json) -> Bundle:
    """Raises `Rejected` for what is no bundle, and for members that it does not have."""
    _require_known(document, Bundle, REST)
    for member, kind in _MEMBERS.items():
        _require_known(document.get(member), kind, member)
    for name, tool in document.get(TOOLS, {}).items():
        _require_known(tool, ToolTexts, f"tool {name}")
    return _converted(document, Bundle, REST)


def write_folder(bundle: Bundle, directory: Path) -> list[str]:
    """Write a bundle into a folder, in the place of one that it holds; returns the paths in it.

    Raises `Rejected` for a folder that holds anything else.
    """
    files = files_of(bundle)
    for path in (files_in(directory) if directory.exists() else {}).keys() - files.keys():
        (directory / path).unlink()
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    return list(files)


def read_folder(directory: Path) -> Bundle:
    """The bundle of a folder. Raises `NotFound` or `Rejected`."""
    try:
        if not (files := files_in(directory)):
            raise Rejected(f"it holds no bundle, which has {INSTRUCTIONS} or {REST} at least")
        return bundle_of(files)
    except Rejected as error:
        raise Rejected(f"{directory}: {error}") from error


def files_in(directory: Path) -> dict[str, bytes]:
    """The files of the bundle in a folder, by path. Raises `NotFound`, or `Rejected` where other files lie there."""
    if not directory.is_dir():
        raise NotFound(f"no such folder: {directory}")
    files: dict[str, bytes] = {}
    for path in (*sorted(directory.iterdir()), *sorted((directory / TOOLS).glob("*"))):
        name = path.relative_to(directory).as_posix()
        if name in (TOOLS, "README.md") or path.name.startswith("."):
            continue
        if name not in (INSTRUCTIONS, EXAMPLES, FORMAT, REST) and not (
            name.startswith(f"{TOOLS}/") and name.endswith(".md")
        ):
            known = f"{INSTRUCTIONS}, {TOOLS}/NAME.md, {EXAMPLES}, {FORMAT} and {REST}"
            raise Rejected(f"{name} is not a file of a bundle, whose folder holds {known}")
        files[name] = read_bytes(path)
    return files


def read_bytes(path: Path) -> bytes:
    """A file of a bundle. Raises `NotFound` or `Rejected`."""
    try:
        if path.exists() and not path.is_file():
            raise Rejected(f"{path} is not a file")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {path}") from error
    except (OSError, ValueError) as error:
        raise NotFound(f"cannot read {path}: {error}") from error
    if len(content) > MOST_BYTES:
        raise Rejected(f"{path} has more than {MOST_BYTES:,} bytes, the most that a whole bundle may have")
    return content


def text_in(content: bytes, named: str) -> str:
    """A text without the line end that closes it. Raises `Rejected` for what is no text."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Rejected(f"{named} is not text in UTF-8: byte {error.start} is wrong") from error
    if "\0" in text:
        raise Rejected(f"{named} is not text: it holds a NUL")
    if not text.strip():
        raise Rejected(f"{named} is empty")
    return text.removesuffix("\n")


def examples_in(content: bytes, named: str) -> list[Json]:
    """Messages, one a line. Raises `Rejected` for a line that is none."""
    lines = [(number, line) for number, line in enumerate(content.split(b"\n"), 1) if line.strip()]
    messages = [_object(line, f"{named}, line {number},") for number, line in lines]
    for (number, _), message in zip(lines, messages, strict=True):
        _require_known(message, Example, f"{named}, line {number}")
        _converted(message, Example, f"{named}, line {number}")
    return messages


def tool_in(content: bytes, named: str) -> ToolTexts:
    """A tool's texts: the members of `ToolTexts` in a .json, else its description. Raises `Rejected`."""
    if not named.endswith(".json"):
        return ToolTexts(description=text_in(content, named))
    texts = _object(content, named)
    _require_known(texts, ToolTexts, named)
    return _converted(texts, ToolTexts, named)


def format_in(content: bytes, named: str) -> Json:
    """A response format. Raises `Rejected`."""
    shape = _object(content, named)
    if not isinstance(shape.get("type"), str):
        raise Rejected(f'{named} has no `type`: a response format is {{"type": "json_schema", "json_schema": ...}}')
    return shape


def _converted(value: object, kind: type[T], named: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise Rejected(f"{named}: {error}") from error


def _object(content: bytes, named: str) -> Json:
    try:
        return msgspec.json.decode(content, type=Json)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Rejected(f"{named} is not a JSON object: {error}") from error


def _require_known(value: object, kind: type[msgspec.Struct], named: str) -> None:
    """Raise `Rejected` for a member that the contract would ignore: it is a misspelt one."""
    given = cast("Json", value) if isinstance(value, dict) else {}
    if unknown := sorted(given.keys() - {*kind.__struct_fields__}):
        raise Rejected(f"{named} has no {unknown[0]!r}: there are {', '.join(kind.__struct_fields__)}")


def _add(target: object, name: str, value: object, path: str) -> None:
    if not isinstance(target, dict) or name in target:
        raise Rejected(f"{path} says what {REST} says too")
    cast("Json", target)[name] = value


def _is_plain(text: str) -> bool:
    """Whether a file can hold it, and gives it back as it is."""
    return bool(text.strip()) and "\0" not in text and not text.startswith("\ufeff")


def _closed(text: str) -> bytes:
    return text.encode() + b"\n"


def _pretty(document: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"

"""The options that name parts of a bundle, read from the files that they name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ratchet.core.contract.bundle import (
    APPEND,
    PREPEND,
    REPLACE,
    Bundle,
    Example,
    Instructions,
    SamplingValues,
    ToolTexts,
)
from ratchet.core.rules.bundles import variables_in
from ratchet.core.stores.bundle_files import examples_in, format_in, read_bytes, text_in, tool_in


def given_parts(
    instructions: Annotated[
        Path | None,
        typer.Option(help="A text file: {{instructions}} is what the agent sent, {{variables.NAME}} its variable."),
    ] = None,
    prepend: Annotated[
        bool, typer.Option("--prepend", help="Before the agent's own instructions, which stay.")
    ] = False,
    append: Annotated[bool, typer.Option("--append", help="After the agent's own instructions, which stay.")] = False,
    tool: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="The description of a tool that agents offer, repeatable; a .json has description and parameters.",
        ),
    ] = None,
    hide_tool: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A tool that the model is not offered, repeatable.")
    ] = None,
    examples: Annotated[
        Path | None, typer.Option(help="Messages after the instructions: JSON lines of {role, content}.")
    ] = None,
    response_format: Annotated[
        Path | None, typer.Option(help="The answer's format, as a chat completion has it, in a JSON file.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A sampling value, whatever the agent sets: temperature=.2."),
    ] = None,
    default: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A sampling value where the agent sets none, repeatable."),
    ] = None,
) -> Bundle:
    """The parts that the command line names, read from their files. Raises `NotFound` or `Rejected`."""
    if (prepend or append) and (instructions is None or (prepend and append)):
        raise typer.BadParameter("--prepend or --append says where the text of --instructions stands")
    described = dict(_named_tool(option) for option in tool or ())
    hidden = {_tool_name(name, "--hide-tool"): ToolTexts(hidden=True) for name in hide_tool or ()}
    if both := sorted(described.keys() & hidden.keys()):
        raise typer.BadParameter(f"{both[0]} is described and hidden")
    return Bundle(
        instructions=_instructions(instructions, PREPEND if prepend else APPEND if append else REPLACE),
        tools=described | hidden,
        examples=_examples(examples),
        response_format=format_in(read_bytes(response_format), str(response_format)) if response_format else None,
        overrides=_sampling(set_ or (), "--set"),
        defaults=_sampling(default or (), "--default"),
    )


def _instructions(path: Path | None, mode: str) -> Instructions | None:
    if path is None:
        return None
    text = text_in(read_bytes(path), str(path))
    return Instructions(text=text, mode=mode, variables=variables_in(text))


def _examples(path: Path | None) -> tuple[Example, ...]:
    if path is None:
        return ()
    return tuple(Example(**message) for message in examples_in(read_bytes(path), str(path)))


def _named_tool(option: str) -> tuple[str, ToolTexts]:
    name, _, file = option.partition("=")
    if not file:
        raise typer.BadParameter(f"--tool takes NAME=FILE, not {option!r}")
    return _tool_name(name, f"--tool {option}"), tool_in(read_bytes(Path(file)), file)


def _tool_name(name: str, option: str) -> str:
    if not name.strip():
        raise typer.BadParameter(f"{option}: the tool has no name")
    return name


def _sampling(options: Sequence[str], option: str) -> SamplingValues | None:
    """`NAME=VALUE` options. Raises `typer.BadParameter` for a name or a value that is none."""
    given: dict[str, object] = {}
    for setting in options:
        name, _, value = setting.partition("=")
        if name not in SamplingValues.__struct_fields__ or not value:
            names = ", ".join(SamplingValues.__struct_fields__)
            raise typer.BadParameter(f"{option} takes NAME=VALUE, not {setting!r}: there are {names}")
        given[name] = value if name == "reasoning_effort" else _number(value)
        try:
            msgspec.convert({name: given[name]}, SamplingValues)
        except msgspec.ValidationError as error:
            raise typer.BadParameter(f"{option} {setting}: {str(error).partition(' - at ')[0]}") from error
    return msgspec.convert(given, SamplingValues) if given else None


def _number(text: str) -> object:
    """The number that a text spells, `.2` too; the text where it spells none."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text

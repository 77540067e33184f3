"""Makes the page about the Python client from its docstrings and signatures."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from ratchet.client import AsyncClient, Client, ClientSettings, Stats, TrajectoryRecorder
from ratchet.client.operations import Operations
from ratchet.client.recording import Recording
from ratchet.client.training import request_of
from ratchet.core.service.openapi import member_words

INTRODUCTION = """# Python client reference

Generated from docstrings and signatures by `make docs`; do not edit. How to use it:
[guide for authors of agents](../guides/agent-author.md) and
[what it does when a server is away](../../services/ratchet/client/README.md)."""

FILLED_IN = frozenset({"role", "algorithm", "requester", "fresh_id", "now"})
"""Parameters that `train` fills in by itself."""


def client_page() -> str:
    """Every public name with its signature."""
    own = inspect.signature(AsyncClient.train)  # it passes its options on: the page shows them
    passed = [
        parameter for parameter in inspect.signature(request_of).parameters.values() if parameter.name not in FILLED_IN
    ]
    kept = [parameter for parameter in own.parameters.values() if parameter.name != "options"]
    train = _doc(AsyncClient.train).replace("; see `training.request_of` for the options", "")
    parts = [
        INTRODUCTION,
        _class("ratchet.Client", Client, only=("flush", "close"), begin=True),
        _class("ratchet.AsyncClient", AsyncClient, only=("start", "flush", "close"), begin=True),
        "## Both clients",
        *(_method(method) for method in (Recording.trajectory, Recording.feedback, Recording.preference)),
        f"### train\n\n{_signature('train', own.replace(parameters=[*kept, *passed]))}\n\n{train}",
        _class("TrajectoryRecorder", TrajectoryRecorder, note="The object that `trajectory()` returns."),
        _fields("Stats", Stats, note="The values of `client.stats`."),
        _fields("ClientSettings", ClientSettings, environment="RATCHET_CLIENT_"),
        _class("ratchet.client.operations.Operations", Operations, begin=True),
    ]
    return "\n\n".join(parts) + "\n"


def _class(title: str, kind: type, only: tuple[str, ...] = (), *, begin: bool = False, note: str = "") -> str:
    public = [name for name, member in vars(kind).items() if not name.startswith("_") and inspect.isfunction(member)]
    parts = [f"## {title}", note or _doc(kind)]
    if begin:
        parts.append(_signature(kind.__name__, inspect.signature(kind.__init__)))
        parts.append(_doc(kind.__init__) if kind.__init__.__doc__ else "")
    parts += [_method(getattr(kind, name)) for name in only or public]
    return "\n\n".join(part for part in parts if part)


def _method(function: Callable[..., Any]) -> str:
    name = function.__name__
    prefix = "async def " if inspect.iscoroutinefunction(function) else ""
    parts = (f"### {name}", _signature(prefix + name, inspect.signature(function)), _doc(function))
    return "\n\n".join(part for part in parts if part)


def _signature(name: str, signature: inspect.Signature) -> str:
    """A signature as the source has it; one that does not fit in a line has a line for each parameter."""
    parameters: list[str] = []
    for parameter in (parameter for parameter in signature.parameters.values() if parameter.name != "self"):
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        mark = "**" if parameter.kind is inspect.Parameter.VAR_KEYWORD else ""
        value: Any = parameter.default
        default = f" = {value.__name__ if callable(value) else repr(value)}"
        parameters.append(
            f"{mark}{parameter.name}: {parameter.annotation}{'' if value is inspect.Parameter.empty else default}"
        )
    back = signature.return_annotation
    end = f") -> {back}" if back not in (None, "None", inspect.Signature.empty) else ")"
    line = f"{name}({', '.join(parameters)}{end}"
    if len(line) > 100:
        line = "\n".join([f"{name}(", *(f"    {parameter}," for parameter in parameters), end])
    return f"```\n{line}\n```"


def _doc(thing: Any) -> str:
    return inspect.cleandoc(thing.__doc__ or "")


def _fields(title: str, kind: type, *, note: str = "", environment: str = "") -> str:
    """A class of values: each with its type, its default, its variable, and the text below it in the source."""
    (source,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(source, ast.ClassDef)  # noqa: S101 - it is the source of a class
    texts = member_words(kind)
    lines = ["| member | type | default | |", "| --- | --- | --- | --- |"]
    for member in (node for node in source.body if isinstance(node, ast.AnnAssign)):
        name = ast.unparse(member.target)
        default = ast.unparse(member.value) if member.value is not None else ""
        made = default.startswith("Field")
        variable = f" `{environment}{name.upper()}`" if environment and not made else ""
        shown = f"`{default}`" if default and not made else ""
        cells = (f"`{name}`", f"`{ast.unparse(member.annotation)}`", shown, f"{texts.get(name, '')}{variable}")
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n\n".join(part for part in (f"## {title}", note or _doc(kind), "\n".join(lines)) if part)

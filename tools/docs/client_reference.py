"""Makes the page about the Python client from its docstrings and signatures."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from ratchet.client import AsyncClient, Client, ClientSettings, Stats, TrajectoryRecorder
from ratchet.client.operations import Operations
from ratchet.client.recording import Recording
from ratchet.client.training import request_of

INTRODUCTION = """# Python client reference

Generated from docstrings and signatures by `make docs`; do not edit. How to use it:
[guide for authors of agents](../guides/agent-author.md) and
[what it does when something is away](../../services/ratchet/client/README.md)."""

GIVEN = frozenset({"role", "algorithm", "requester", "fresh_id", "now"})
"""What `train` fills in by itself."""


def client_page() -> str:
    """Every public name, with what it can be told."""
    parts = [
        INTRODUCTION,
        _class("ratchet.Client", Client, only=("flush", "close"), begin=True),
        _class("ratchet.AsyncClient", AsyncClient, only=("start", "flush", "close"), begin=True),
        "## What both clients do",
        *(_method(one) for one in (Recording.trajectory, Recording.feedback, Recording.preference)),
        _training(),
        _class("TrajectoryRecorder", TrajectoryRecorder, note="What `trajectory()` returns."),
        _fields("Stats", Stats, note="What `client.stats` holds."),
        _fields("ClientSettings", ClientSettings, note="", environment="RATCHET_CLIENT_"),
        _class("ratchet.client.operations.Operations", Operations, begin=True),
    ]
    return "\n\n".join(parts) + "\n"


def _class(title: str, kind: type, only: tuple[str, ...] | None = None, *, begin: bool = False, note: str = "") -> str:
    names = only if only is not None else _public(kind)
    parts = [f"## {title}", note or _doc(kind)]
    if begin:
        parts.append(_signature(kind.__name__, kind.__init__))
        parts.append(_doc(kind.__init__) if kind.__init__.__doc__ else "")
    parts += [_method(getattr(kind, name)) for name in names]
    return "\n\n".join(part for part in parts if part)


def _public(kind: type) -> list[str]:
    """Methods in the order of the source."""
    return [name for name, one in vars(kind).items() if not name.startswith("_") and inspect.isfunction(one)]


def _method(function: Callable[..., Any]) -> str:
    prefix = "async def " if inspect.iscoroutinefunction(function) else ""
    parts = (f"### {function.__name__}", _signature(prefix + function.__name__, function), _doc(function))
    return "\n\n".join(part for part in parts if part)


def _training() -> str:
    """`train` passes its options on; the reader wants to see them."""
    own = inspect.signature(AsyncClient.train)
    passed = [one for one in inspect.signature(request_of).parameters.values() if one.name not in GIVEN]
    kept = [one for one in own.parameters.values() if one.name != "options"]
    said = _doc(AsyncClient.train).replace("; see `training.request_of` for the options", "")
    return f"### train\n\n{_block('train', own.replace(parameters=[*kept, *passed]))}\n\n{said}"


def _signature(name: str, function: Callable[..., Any]) -> str:
    return _block(name, inspect.signature(function))


def _block(name: str, signature: inspect.Signature) -> str:
    """A signature; one that does not fit in a line has a line for each parameter."""
    shown = list(_parameters(signature))
    back = signature.return_annotation
    end = f") -> {back}" if back not in (None, "None", inspect.Signature.empty) else ")"
    line = f"{name}({', '.join(shown)}{end}"
    if len(line) > 100:
        line = "\n".join([f"{name}(", *(f"    {one}," for one in shown), end])
    return f"```\n{line}\n```"


def _parameters(signature: inspect.Signature) -> Iterator[str]:
    """The parameters as the source has them, with the star before those that are named."""
    star = False
    for one in signature.parameters.values():
        if one.name == "self":
            continue
        if one.kind is inspect.Parameter.KEYWORD_ONLY and not star:
            star = True
            yield "*"
        mark = "**" if one.kind is inspect.Parameter.VAR_KEYWORD else ""
        default = "" if one.default is inspect.Parameter.empty else f" = {_shown(one.default)}"
        yield f"{mark}{one.name}: {one.annotation}{default}"


def _shown(default: Any) -> str:
    return default.__name__ if callable(default) else repr(default)


def _doc(thing: Any) -> str:
    return inspect.cleandoc(thing.__doc__ or "")


def _fields(title: str, kind: type, *, note: str, environment: str = "") -> str:
    """A class of values: each with its default, its variable, and the words below it in the source."""
    lines = ["| member | type | default | |", "| --- | --- | --- | --- |"]
    for name, type_of, default, said in _members(kind):
        variable = f" `{environment}{name.upper()}`" if environment and not default.startswith("Field") else ""
        shown = f"`{default}`" if default and not default.startswith("Field") else ""
        cells = (f"`{name}`", f"`{type_of}`", shown, f"{said}{variable}")
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n\n".join(part for part in (f"## {title}", note or _doc(kind), "\n".join(lines)) if part)


def _members(kind: type) -> Iterator[tuple[str, str, str, str]]:
    """Annotated members and the strings that follow them; only the source knows these."""
    parsed = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    members = next(one.body for one in parsed.body if isinstance(one, ast.ClassDef))
    for one, after in zip(members, [*members[1:], None], strict=True):
        if not isinstance(one, ast.AnnAssign):
            continue
        told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        said = str(after.value.value) if told else ""
        default = ast.unparse(one.value) if one.value is not None else ""
        yield ast.unparse(one.target), ast.unparse(one.annotation), default, " ".join(said.split())

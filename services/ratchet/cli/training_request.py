"""Reads what a person says about a training job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import msgspec
import typer

from ratchet.cli.json_input import json_file
from ratchet.errors import NotFound, Rejected


def hyperparameters(options: list[str]) -> dict[str, Any]:
    """`NAME=VALUE` options as a JSON object; a value is read as JSON, or else is text. `lora.r=8` nests.

    Raises `typer.BadParameter`.
    """
    made: dict[str, Any] = {}
    for option in options:
        name, separator, value = option.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"--set takes NAME=VALUE, not {option!r}")
        *path, last = name.split(".")
        target = made
        for part in path:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise typer.BadParameter(f"--set {option}: {part} already has a value of its own")
        target[last] = _value(value)
    return made


def request_body(role: str, algorithm: str, base_model: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """The heart of a request."""
    return {
        "algorithm": algorithm,
        "role": role,
        "base_model": base_model,
        "hyperparameters": chosen,
        "requester": "ratchet train",
    }


def located(base_model: str, *, trains_here: bool) -> str:
    """What workers are told: a directory here by its whole path, for they stand elsewhere; anything else as it is.

    Raises `NotFound` for a path to no directory: a relative one, which means something here only, and any where
    `trains_here` says that the stack's own worker would look for it on this machine.
    """
    path = Path(base_model)
    if os.path.isdir(base_model):  # noqa: PTH112 - unlike pathlib's, it refuses no text
        return str(path.resolve())
    if _is_path(base_model) and (trains_here or not path.is_absolute()):
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise NotFound(f"base_model {base_model}: there is no such directory{where}")
    return base_model


def _is_path(base_model: str) -> bool:
    """Whether it can be nothing else: a model's name on a hub is `model` or `owner/model`."""
    is_uri = "://" in base_model
    return not is_uri and (base_model[:1] in {"/", ".", "~"} or base_model[-1:] == "/" or base_model.count("/") > 1)


def dataset(samples: int, **chosen: object) -> dict[str, Any]:
    """Which trajectories to train on; what is None is not said."""
    return {"sample_size": samples, "filter": {name: value for name, value in chosen.items() if value is not None}}


def read_request(path: Path) -> dict[str, Any]:
    """A request from a JSON file. Raises `NotFound` or `Rejected`."""
    document = json_file(path)
    if not isinstance(document, dict):
        raise Rejected(f"{path} is not a JSON object")
    return cast(dict[str, Any], document)


def _value(text: str) -> Any:  # `Any`: JSON
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text

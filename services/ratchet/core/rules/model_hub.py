"""The libraries that load models: how their processes are set up, whether a hub may be asked, why none was loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

HUB_VARIABLE = "RATCHET_HUB"
"""`1`: a base model that is not a directory may be fetched from a hub; otherwise the local cache must hold it."""
OFFLINE_VARIABLE = "HF_HUB_OFFLINE"
"""Libraries read it when they are imported; a hub that cannot be reached takes minutes to say so."""
PASSIVE = {"OMP_WAIT_POLICY": "passive"}
"""Waiting threads of torch sleep. Spinning ones took 11 to 15 times as long where two shared two processors with other
work. Torch reads it once, when it is imported."""


def library_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """What the environment of libraries needs so that they ask a hub only where `RATCHET_HUB` is 1."""
    return {} if environment.get(HUB_VARIABLE) == "1" else {OFFLINE_VARIABLE: "1"}


def stay_local() -> None:
    """Keep the libraries of this process from a hub, unless it is asked for. To be called before they are imported."""
    os.environ.update(library_settings(os.environ))


def why_not_loaded(source: str | Path, error: Exception) -> str:
    """The reason in one line. Libraries speak of a hub that was not asked, and of backends where there is no model."""
    directory = Path(source)
    if directory.is_dir():
        if not (directory / "config.json").is_file():
            return "no model there: it has no config.json"
    elif isinstance(error, OSError) and os.environ.get(OFFLINE_VARIABLE) == "1":
        return f"no directory here, and not in the local cache; with {HUB_VARIABLE}=1 it is fetched from a hub"
    lines = str(error).splitlines() or [type(error).__name__]
    return " ".join(" ".join(lines).split()) if lines[0].rstrip().endswith(":") else lines[0]

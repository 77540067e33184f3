"""Writes deploy/kubernetes/base/ratchet.yaml, and what only other values make, from the chart: `make manifests`.

In the environment of `make helm`, which has Helm's engine: no cluster is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "deploy" / "kubernetes" / "chart"
BASE = REPOSITORY / "deploy" / "kubernetes" / "base" / "ratchet.yaml"
DATA = REPOSITORY / "tests" / "data" / "kubernetes"
VALUES, OPTIONAL = DATA / "values.yaml", DATA / "optional.yaml"
"""Values with which the chart makes everything that it can make, and what they add to the base or change in it."""

Values = Mapping[str, Any]
"""`Any`: YAML."""


def render(values: Values) -> str:
    """What the chart makes, as Helm writes it. Raises Helm's errors."""
    helm: Any = import_module("helm_python")  # of the package helm-python-sdk, which `make helm` installs

    with helm.Chart.load(str(CHART)) as chart:
        rendered: dict[str, str] = chart.render(dict(values), name="ratchet", namespace="ratchet")
    parts = [text.strip() for name, text in sorted(rendered.items()) if name.endswith(".yaml")]
    return "\n".join(part for part in parts if part) + "\n"


def pieces(text: str) -> list[str]:
    """The objects of a file of manifests, each as text."""
    return [piece.strip("\n") for piece in f"\n{text}".split("\n---\n") if piece.strip()]


def manifests() -> dict[Path, str]:
    """By file: what it holds."""
    base = render({})
    more = [piece for piece in pieces(render(yaml.safe_load(VALUES.read_text()))) if piece not in pieces(base)]
    return {BASE: base, OPTIONAL: "".join(f"---\n{piece}\n" for piece in more)}


if __name__ == "__main__":
    for path, text in manifests().items():
        path.write_text(text)

"""Writes docs/api and the control APIs' OpenAPI documents. With --check, only compares, and fails on a difference."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from client_reference import client_page
from http_reference import Document, http_page
from training_reference import training_page

from ratchet.canary_deployer.http_api import Api
from ratchet.rl_coordinator.http import http_app

ROOT = Path(__file__).parents[2]
HTTP = ROOT / "contracts" / "http"
SERVICES = ("gateway", "coordinator", "deployer", "engine")
NOTHING: Any = None
"""In the place of what routes work with: describing them uses none of it."""


def coordinator_document() -> Document:
    """What the coordinator itself serves at /openapi.json."""
    return http_app({}, jobs=NOTHING, registry=NOTHING, triggers=NOTHING, now=NOTHING).openapi()


def deployer_document() -> Document:
    """What the deployer itself serves at /openapi.json."""
    return Api(NOTHING, NOTHING, NOTHING, NOTHING).app().openapi()


def made() -> Mapping[Path, str]:
    """Every generated file and its text."""
    served = {"coordinator": coordinator_document(), "deployer": deployer_document()}
    documents = {name: served.get(name) or _written(name) for name in SERVICES}
    return {
        **{
            HTTP / f"{name}.openapi.json": json.dumps(document, indent=1, ensure_ascii=False) + "\n"
            for name, document in served.items()
        },
        ROOT / "docs" / "api" / "client.md": client_page(),
        ROOT / "docs" / "api" / "http.md": http_page(documents),
        ROOT / "docs" / "api" / "training.md": training_page(),
    }


def _written(name: str) -> Document:
    return yaml.safe_load((HTTP / f"{name}.openapi.yaml").read_text())


def main() -> int:
    """Write or compare."""
    pages = made()
    if "--check" in sys.argv[1:]:
        stale = [path for path, text in pages.items() if not path.exists() or path.read_text() != text]
        for path in stale:
            sys.stderr.write(f"{path.relative_to(ROOT)} is out of date: run `make docs`\n")
        return 1 if stale else 0
    for path, text in pages.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Writes docs/api for the site: references of client, HTTP and training, and the decisions. Git ignores the folder.

python -m tools.docs.api_pages
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from tools.docs.client_reference import client_page
from tools.docs.decisions_index import decisions_page
from tools.docs.http_reference import http_page
from tools.docs.training_reference import training_page

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("gateway", "coordinator", "deployer", "engine")


def pages() -> Mapping[str, str]:
    """Each page by its name below docs/api."""
    files = {service: next((ROOT / "contracts" / "http").glob(f"{service}.openapi.*")) for service in SERVICES}
    documents = {service: yaml.safe_load(file.read_text()) for service, file in files.items()}
    return {
        "client.md": client_page(),
        "decisions.md": decisions_page(ROOT / "docs" / "adr"),
        "http.md": http_page(documents),
        "training.md": training_page(),
    }


def main() -> None:
    """Write them."""
    folder = ROOT / "docs" / "api"
    folder.mkdir(exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main()

"""Prints the notes of a release, once everything that bears its version agrees: `python tools/release.py 0.1.0`.

The workflow `release` runs it for the tag that was pushed. What is not ready ends it with exit code 1 and a line each.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("pyproject.toml", "deploy/python-client/pyproject.toml")
COMPOSE = ("docker-compose.yml", "deploy/docker/compose.tls.yml")
RECORDED = ("contracts/released", "contracts/http/released", "deploy/released")
_OWN_IMAGE = re.compile(r"image: ratchet[a-z-]*:(\S+)")


def problems(root: Path, version: str) -> list[str]:
    """What stands in the way of a release."""
    packages = {name: tomllib.loads((root / name).read_text())["project"]["version"] for name in PACKAGES}
    faults = [f"{name} has version {other}" for name, other in packages.items() if other != version]
    for name in COMPOSE:
        others = {*_OWN_IMAGE.findall((root / name).read_text())} - {version}
        faults += [f"{name} has images of {other}" for other in sorted(others)]
    faults += [
        f"{folder}/{version}.json is missing: python -m tools.record_release {version}"
        for folder in RECORDED
        if not (root / folder / f"{version}.json").is_file()
    ]
    if not notes(root, version):
        faults.append(f"CHANGELOG.md has no section `## {version}` with a date, such as `## {version} (2027-01-31)`")
    return faults


def notes(root: Path, version: str) -> str:
    """The changelog's section of a version that has a date; empty without one."""
    begins = rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)\n"
    section = re.search(begins + r"(.*?)(?=^## |\Z)", (root / "CHANGELOG.md").read_text(), re.DOTALL | re.MULTILINE)
    return section[1].strip() if section else ""


def main() -> None:
    """Print the notes, or what is not ready."""
    parser = argparse.ArgumentParser(description="Prints the notes of a release, once all agrees.")
    parser.add_argument("version", help="such as 0.1.0")
    version: str = parser.parse_args().version
    if faults := problems(ROOT, version):
        sys.exit("\n".join(faults))
    print(notes(ROOT, version))  # noqa: T201


if __name__ == "__main__":
    main()

"""A release is refused until everything that bears its version agrees; its workflow keeps to GitHub's schema."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.compose import compose
from tests.support.pages import ROOT
from tools.release import COMPOSE, PACKAGES, RECORDED, notes, problems

VALUES = ROOT / "deploy" / "kubernetes" / "chart" / "values.yaml"
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"
JOBS: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text())["jobs"]


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A tree of which 0.1.0 could be released."""
    for name in (*PACKAGES, *COMPOSE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for folder in RECORDED:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "0.1.0.json").write_text("{}")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.2.0\n\n- more\n\n## 0.1.0 (2027-01-31)\n\n- first\n")
    return tmp_path


def test_tree_that_agrees_is_released_with_its_notes(ready: Path) -> None:
    assert problems(ready, "0.1.0") == []
    assert notes(ready, "0.1.0") == "- first"


def test_tree_lacks_nothing_but_a_date_to_be_released() -> None:
    (version,) = {tomllib.loads((ROOT / name).read_text())["project"]["version"] for name in PACKAGES}
    assert [problem for problem in problems(ROOT, version) if not problem.startswith("CHANGELOG.md")] == []


def test_version_that_some_part_does_not_have_is_refused(ready: Path) -> None:
    named = {problem.split()[0] for problem in problems(ready, "0.2.0")}
    assert named == {*PACKAGES, *COMPOSE, *(f"{folder}/0.2.0.json" for folder in RECORDED), "CHANGELOG.md"}


def test_workflow_keeps_to_the_schema_of_github() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(WORKFLOW)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_workflow_publishes_by_its_identity_and_with_no_secret() -> None:
    assert "secrets." not in WORKFLOW.read_text()
    assert JOBS["publish"]["permissions"] == {"id-token": "write"}
    assert {name for name, job in JOBS.items() if "id-token" in job.get("permissions", {})} == {"publish", "images"}


def test_images_of_a_release_are_those_that_containers_run() -> None:
    built = {
        service["image"].partition(":")[0]: service["build"]["dockerfile"]
        for service in compose()["services"].values()
        if "build" in service
    }
    released = {row["image"]: row["file"] for row in JOBS["images"]["strategy"]["matrix"]["include"]}
    assert built == released


def test_images_of_pods_are_those_of_a_release_but_for_ray() -> None:
    pods = {*re.findall(r"image: (ratchet[a-z-]*)\b", VALUES.read_text())}
    assert pods - {row["image"] for row in JOBS["images"]["strategy"]["matrix"]["include"]} == {"ratchet-ray"}

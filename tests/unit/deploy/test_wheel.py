"""The wheel ships the code, the example of `ratchet demo`, the files that are read at run time, and no more."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from ratchet.core.stores.schema import schema_statements
from tests.support.compose import REPOSITORY

WHEEL = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
READS = """
import json
import ratchet_helpdesk
from ratchet.core.contract.directory import releases
from ratchet.local.local_stack.servers import nats_server
from ratchet.core.resources import resource_dir
from ratchet.core.service.contracts import load_contracts
from ratchet.core.stores.schema import schema_statements

print(json.dumps({
    "topics": len(load_contracts().topics),
    "releases": sorted(releases(resource_dir("contracts"))),
    "statements": len(schema_statements()),
    "example": ratchet_helpdesk.__file__,
    "broker": (resource_dir("deploy") / "nats" / "embedded.conf").is_file(),
}))
"""


def laid_out(directory: Path) -> None:
    """The packages as their wheel would unpack them."""
    patterns = shutil.ignore_patterns("__pycache__", *WHEEL["exclude"])

    def ignored(folder: str, names: list[str]) -> set[str]:
        paths = {name: str((Path(folder) / name).relative_to(REPOSITORY)) for name in names}
        return patterns(folder, names) | {name for name, path in paths.items() if path in WHEEL["exclude"]}

    for package in WHEEL["packages"]:
        shutil.copytree(REPOSITORY / package, directory / Path(package).name, ignore=ignored)
    for source, target in WHEEL["force-include"].items():
        (directory / target).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (REPOSITORY / source).is_dir() else shutil.copy
        copy(REPOSITORY / source, directory / target)


def test_an_installed_package_finds_everything_that_it_reads(tmp_path: Path) -> None:
    laid_out(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", READS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)

    assert done.stderr == ""
    read = json.loads(done.stdout)
    assert read["topics"] == len(json.loads((REPOSITORY / "contracts" / "topics.json").read_text())["topics"])
    assert read["releases"] == [path.stem for path in sorted((REPOSITORY / "contracts" / "released").glob("*.json"))]
    assert read["statements"] == len(schema_statements())
    assert read["broker"] is True
    assert Path(read["example"]).is_relative_to(tmp_path)


def test_wheel_holds_schemas_registry_sql_template_and_pages_beside_code(tmp_path: Path) -> None:
    laid_out(tmp_path)

    assert {path.name for path in tmp_path.iterdir()} == {"ratchet", "ratchet_helpdesk"}
    files = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    pages = {path for path in files if path.is_relative_to("ratchet/console/static")}
    assert {path.suffix for path in pages} == {".html", ".css", ".js", ".svg"}
    shipped = {path for path in files - pages if path.suffix != ".py"}
    models = {"base.safetensors", "adapter_model.safetensors"}
    beside_code = {
        "py.typed",
        "smollm2.jinja",
        "defaults.toml",
        "figures.toml",
        "adapter_config.json",
        "digests.json",
    } | models
    others = {path for path in shipped if path.suffix not in (".sql", ".json", ".yaml")}
    assert {path.name for path in others} <= {"README.md", "embedded.conf"} | beside_code
    assert Path("ratchet/py.typed") in shipped
    assert all(path.parts[:2] == ("ratchet", "_resources") for path in shipped if path.name not in beside_code)

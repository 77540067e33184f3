"""The packages of docs/guides/plugins.md, installed as the page has them, are variants that Ratchet takes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from ratchet.core.plugins import PluginTable
from ratchet.core.rules.algorithms import ALGORITHMS
from ratchet.reward_computer.components import COMPONENTS, Evidence
from tests.support.messages import trajectory
from tests.support.packages import installed, write_package
from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "guides" / "plugins.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_guides_component_and_algorithm_are_taken_as_they_stand(tmp_path: Path) -> None:
    component, algorithm, *_ = blocks("python")
    (project,) = blocks("toml")
    declared = tomllib.loads(project)["project"]["entry-points"]
    name, module = re.findall(r'`"([\w.]+)" = "(\w+:\w+)"`', PAGE)[0]
    write_package(tmp_path, "acme_rewards", component, declared)
    write_package(tmp_path, "acme_training", algorithm, {"ratchet.algorithms": {name: module}})
    with installed(tmp_path):
        components = PluginTable(COMPONENTS.group, COMPONENTS.noun, COMPONENTS.built_in, COMPONENTS.fit)
        algorithms = PluginTable(ALGORITHMS.group, ALGORITHMS.noun, ALGORITHMS.built_in, ALGORITHMS.fit)
        assessment = components["brevity"](Evidence(trajectory("t")))
        assert assessment is not None
        assert (assessment.score, assessment.reasoning) == (1.0, "1 turns")
        assert algorithms["acme.simpo"].learns_from == "pairs"

"""Variants of other packages: known by name, imported on first use, refused in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.canary_deployer.gates import GATES
from ratchet.cli.exit_codes import ExitCode
from ratchet.core.contract.training import Hyperparameters
from ratchet.core.errors import ConfigError
from ratchet.core.plugins import TABLES, PluginTable, tables
from ratchet.core.rules.algorithms import ALGORITHMS
from ratchet.core.rules.training_options import training_problems
from ratchet.extras.exporters import KINDS
from ratchet.extras.importers import IMPORTERS
from ratchet.gateway.engines import KINDS as ENGINES
from ratchet.reward_computer.components import COMPONENTS, Evidence
from tests.support.messages import trajectory
from tests.support.packages import installed, write_package
from tests.support.training import config

ACME = """
from ratchet.reward_computer.components import Assessment
from ratchet.core.rules.algorithms import Algorithm

def brevity(evidence):
    return Assessment(1.0 / len(evidence.trajectory.turns), 1.0, "turns")

def of_two(evidence, history): ...

def wordy(evidence):
    return "very short"

def gate(tools): ...

simpo = Algorithm(
    name="acme.simpo", train="acme:train", learns_from="pairs", hyperparameters=frozenset({"beta"}),
    needs_token_ids=False, default_batch_size=16,
)
unnamespaced = Algorithm(
    name="simpo", train="acme:train", learns_from="pairs", hyperparameters=frozenset({"beta"}),
    needs_token_ids=False, default_batch_size=16,
)
unheard = Algorithm(
    name="acme.unheard", train="acme:train", learns_from="pairs", hyperparameters=frozenset({"warmth"}),
    needs_token_ids=False, default_batch_size=16,
)
blind = Algorithm(
    name="acme.blind", train="acme:train", learns_from="pairs", hyperparameters=frozenset(),
    needs_token_ids=True, default_batch_size=16,
)
"""
DECLARED = {
    "ratchet.reward_components": {
        "brevity": "acme:brevity",
        "of_two": "acme:of_two",
        "wordy": "acme:wordy",
        "missing": "acme:no_such_thing",
        "absent": "acme_that_is_not_there:x",
        "safety": "acme:brevity",
    },
    "ratchet.algorithms": {
        "acme.simpo": "acme:simpo",
        "acme.other": "acme:simpo",
        "simpo": "acme:unnamespaced",
        "acme.unheard": "acme:unheard",
        "acme.blind": "acme:blind",
        "acme.gate": "acme:gate",
    },
    "ratchet.gates": {"acme_gate": "acme:gate"},
    "ratchet.exporters": {"acme_gate": "acme:gate"},
    "ratchet.importers": {"acme_gate": "acme:gate"},
    "ratchet.engines": {"acme_gate": "acme:gate"},
}


def fresh(table: PluginTable[Any]) -> PluginTable[Any]:
    """The same table, which has not looked at what is installed yet."""
    return PluginTable(table.group, table.noun, table.built_in, table.fit)


@pytest.fixture
def acme(tmp_path: Path) -> Iterator[Path]:
    """A package with variants of every kind, good and bad."""
    write_package(tmp_path, "acme", ACME, DECLARED)
    with installed(tmp_path):
        yield tmp_path


def test_built_in_variants_come_first_and_are_known_without_an_import(acme: Path) -> None:
    components = fresh(COMPONENTS)

    assert list(components)[: len(COMPONENTS.built_in)] == list(COMPONENTS.built_in)
    assert list(components)[len(COMPONENTS.built_in) :] == ["absent", "brevity", "missing", "of_two", "wordy"]
    assert "brevity" in components
    assert len(components) == len(COMPONENTS.built_in) + 5
    assert "acme" not in sys.modules


def test_a_component_of_a_package_is_a_component(acme: Path) -> None:
    assessment = fresh(COMPONENTS)["brevity"](Evidence(trajectory("t")))

    assert assessment is not None
    assert 0 < assessment.score <= 1


def test_what_a_component_returns_is_checked(acme: Path) -> None:
    with pytest.raises(TypeError, match="reward component wordy returned a str, not an Assessment or None"):
        fresh(COMPONENTS)["wordy"](Evidence(trajectory("t")))


def test_a_built_in_name_is_never_replaced(acme: Path) -> None:
    components = fresh(COMPONENTS)

    assert components["safety"] is COMPONENTS.built_in["safety"]
    refused = [one for one in components.plugins(load=False) if one.refused]
    assert [(one.name, one.package, one.refused) for one in refused] == [
        ("safety", "acme 1.0", "the name is that of a built-in one")
    ]


@pytest.mark.parametrize(
    ("table", "name", "reason"),
    [
        (COMPONENTS, "of_two", r"reward component 'of_two' of acme 1\.0 does not fit: it cannot be called with 1"),
        (COMPONENTS, "missing", r"reward component 'missing' of acme 1\.0 cannot be loaded: AttributeError"),
        (COMPONENTS, "absent", r"reward component 'absent' of acme 1\.0 cannot be loaded: ModuleNotFoundError"),
        (ALGORITHMS, "acme.other", r"algorithm 'acme\.other' of acme 1\.0 does not fit: it is named 'acme\.simpo'"),
        (ALGORITHMS, "simpo", r"'simpo' .* a name that a package brings has the form <package>\.<name>"),
        (ALGORITHMS, "acme.unheard", r"a request has no hyperparameters warmth"),
        (ALGORITHMS, "acme.blind", r"rows of the format pairs have no token ids"),
        (ALGORITHMS, "acme.gate", r"it is a function, not a ratchet\.core\.rules\.algorithms\.Algorithm"),
        (
            KINDS,
            "acme_gate",
            r"kind of export 'acme_gate' .* it is a function, not a ratchet\.extras\.exporters\.base\.Kind",
        ),
        (IMPORTERS, "acme_gate", r"importer 'acme_gate' .* not a ratchet\.extras\.importers\.base\.Importer"),
        (ENGINES, "acme_gate", r"engine 'acme_gate' .* cannot be called with 2 positional argument"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(acme: Path, table: PluginTable[Any], name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        fresh(table)[name]


def test_what_cannot_be_loaded_is_imported_once(tmp_path: Path) -> None:
    source = """
with open(__file__ + ".imports", "a") as imports:
    imports.write("x")
raise RuntimeError("no licence")
"""
    write_package(tmp_path, "broken", source, {"ratchet.gates": {"broken_gate": "broken:gate"}})
    with installed(tmp_path):
        gates = fresh(GATES)
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"'broken_gate' of broken 1\.0 cannot be loaded: RuntimeError: no l"):
                gates["broken_gate"]
        assert [one.refused for one in gates.plugins(load=True) if one.name == "broken_gate"] == ["no licence"]

    assert [file.read_text() for file in tmp_path.glob("**/*.imports")] == ["x"]


def test_a_gate_of_a_package_is_built_from_the_gates_tools(acme: Path) -> None:
    assert fresh(GATES)["acme_gate"].__name__ == "gate"


def test_two_packages_of_one_name_are_both_refused(acme: Path) -> None:
    write_package(
        acme, "rival", "def brevity(evidence): ...", {"ratchet.reward_components": {"brevity": "rival:brevity"}}
    )
    components = fresh(COMPONENTS)

    with pytest.raises(ConfigError, match=r"'brevity' is declared by acme 1\.0 and rival 1\.0: uninstall all but one"):
        components["brevity"]
    assert [(one.package, one.refused) for one in components.plugins(load=False) if one.name == "brevity"] == [
        ("acme 1.0", "the name is declared by acme 1.0 and rival 1.0"),
        ("rival 1.0", "the name is declared by acme 1.0 and rival 1.0"),
    ]


def test_a_name_that_nothing_has_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        COMPONENTS["brevity"]


def test_an_algorithm_of_a_package_is_held_against_its_own_declaration(acme: Path) -> None:
    algorithms = fresh(ALGORITHMS)
    asked = config("acme.simpo", hyperparameters=Hyperparameters(beta=0.5))

    assert training_problems(asked, algorithms) == []
    assert training_problems(config("acme.simpo", hyperparameters=Hyperparameters(gamma=0.9)), algorithms) == [
        "acme.simpo has no hyperparameter gamma"
    ]
    assert training_problems(config("acme.blind"), algorithms) == [
        "algorithm 'acme.blind' of acme 1.0 does not fit: rows of the format pairs have no token ids"
    ]


def test_every_kind_has_its_table() -> None:
    assert [table.group for table in tables()] == list(TABLES)
    assert all(table.built_in for table in tables())


def test_the_list_names_every_variant_its_package_and_why_it_is_refused(acme: Path) -> None:
    path = os.pathsep.join([str(acme), *sys.path])
    command = [sys.executable, "-m", "ratchet.cli", "plugins", "--check", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path})

    refused = {
        (one["group"], one["name"], one["package"]): one["refused"] for one in json.loads(done.stdout)["plugins"]
    }
    assert done.returncode == ExitCode.PARTLY
    assert refused["ratchet.reward_components", "brevity", "acme 1.0"] is None
    assert refused["ratchet.reward_components", "safety", "built in"] is None
    assert refused["ratchet.reward_components", "safety", "acme 1.0"] == "the name is that of a built-in one"
    assert refused["ratchet.algorithms", "acme.blind", "acme 1.0"] == "rows of the format pairs have no token ids"
    assert refused["ratchet.algorithms", "acme.simpo", "acme 1.0"] is None


def test_an_installation_without_packages_refuses_nothing() -> None:
    command = [sys.executable, "-m", "ratchet.cli", "plugins", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == ExitCode.DONE
    assert "task_completion" in done.stdout

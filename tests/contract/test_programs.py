"""Who publishes, reads and opens what: `topics.json` names exactly the programs whose code does.

The command of operators, the supervisor of `ratchet up` and the demo may do all that operators may; `cli` is named
where it publishes, and where nothing but people read.
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ratchet.core.contract import (
    MESSAGES,
    AuditEntry,
    DeadLetter,
    erasure,
    learning,
    notifications,
    opt_out,
    state,
    workflows,
)
from tests.support.contract_files import CONTRACTS, ROOT

SERVICES = Path(__file__).parents[2] / "services" / "ratchet"
PROGRAMS = {
    **{name: name for name in ("gateway", "trajectory_collector", "reward_computer", "rl_coordinator")},
    **{name: name for name in ("trainer_worker", "canary_deployer", "console", "notifier", "client", "cli")},
    "workflows": "workflows",
    "analyst": "analyst",
    "extras/trackers": "experiment_tracker",
    "extras/span_exporter": "span_exporter",
    "extras/importers": "cli",
    "core/preferences": "cli",
}
"""Folder of code -> the program that runs it."""
OPERATORS = {"cli"}
BY_HELPER = {"gap_alert": "Alert", "failure_alerts": "Alert", "load_contracts": "Alert", "audit_log_of": "AuditEntry"}
"""Functions that make a message; a bus with these contracts tells what it has noticed."""
ADDED = {
    ("agent.rl.trajectory.end.v1", "gateway"): "what agents send is published as it was read",
    ("agent.rl.feedback.v1", "gateway"): "what agents send is published as it was read",
    ("agent.rl.feedback.v1", "cli"): "an import publishes what its format holds",
}
NOT_SENT = {
    ("agent.rl.trajectory.end.v1", "trajectory_collector"): "of a run that fell silent; it goes no further",
    ("agent.rl.turn.v1", "cli"): "a call of an imported run, before it becomes a trajectory",
    ("agent.rl.preference.v1", "trainer_worker"): "a row that it learns from",
}
"""Messages that the code makes and does not publish, and why."""
READ_IN_ORDER = {
    "canary_deployer": {"start", "turn", "feedback", "reward", "model.rollout"},
    "console": {
        *("trajectory", "reward", "feedback", "preference", "alert"),
        *("training.request", "training.status", "model.deployed", "model.rollout"),
    },
    "gateway": {"gateway.notes"},
    "reward_computer": {"reward", "stored"},
    "rl_coordinator": {"stored"},
    "trajectory_collector": {"alert", "deadletter", "audit"},
    "notifier": {"alert"},
    "analyst": {"learning"},
}
"""By program: topics that it reads without a durable consumer or a projection; beside those, the collector reads its
own streams again to restore a history."""
ORDERED = ("OrderedReader", "StoredWatch", "Listener", "AlertsFollower", "held_alerts", "audit_entries")


@dataclass
class Module:
    """Names of a module."""

    imports: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Package and name."""
    called: set[str] = field(default_factory=set[str])
    passed_on: set[str] = field(default_factory=set[str])
    """All that it uses."""

    def imported(self, package: str) -> set[str]:
        """Names that it imports from a package."""
        return {name for source, name in self.imports if source.startswith(package)}


def module_of(file: Path) -> Module:
    module = Module()
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.ImportFrom():
                module.imports += [(node.module or "", name.name) for name in node.names]
            case ast.Call(func=ast.Name(id=name)):
                module.called.add(name)
            case ast.Name(id=name):
                module.passed_on.add(name)
            case _:
                pass
    return module


@cache
def code() -> dict[str, list[Module]]:
    """The modules of every program."""
    modules: dict[str, list[Module]] = defaultdict(list)
    for folder, program in PROGRAMS.items():
        modules[program] += map(module_of, sorted((SERVICES / folder).rglob("*.py")))
    return modules


def makers() -> Iterator[tuple[str, str]]:
    """(topic, program) of every message that code of a program makes."""
    topics = {kind.__name__: name for name, kind in MESSAGES.items()}
    for program, modules in code().items():
        for module in modules:
            own = module.called & module.imported("ratchet.core.contract") & topics.keys()
            helped = {kind for helper, kind in BY_HELPER.items() if helper in module.passed_on}
            yield from ((topics[name], program) for name in own | helped)


def test_producers_are_the_programs_whose_code_makes_the_message() -> None:
    dead = {(DeadLetter.TOPIC, spec.service) for spec in CONTRACTS.consumers.values()}
    made = {*makers(), *ADDED, *dead} - NOT_SENT.keys()
    named = {(topic.name, program) for topic in CONTRACTS.topics.values() for program in topic.producers}
    assert named == made


def test_consumers_are_the_programs_that_open_a_reader_of_the_topic() -> None:
    declared = [*CONTRACTS.consumers.values(), *CONTRACTS.projections.values()]
    reading = {(topic, spec.service) for spec in declared for topic in spec.topics}
    reading |= {(f"agent.rl.{name}.v1", program) for program, names in READ_IN_ORDER.items() for name in names}
    reading |= {(DeadLetter.TOPIC, "cli"), (AuditEntry.TOPIC, "cli")}
    assert {(topic.name, program) for topic in CONTRACTS.topics.values() for program in topic.consumers} == reading


def test_only_the_programs_listed_read_a_stream_in_order() -> None:
    readers = {
        program
        for program, modules in code().items()
        if program not in {*OPERATORS, "client"} and any(module.called & {*ORDERED} for module in modules)
    }
    assert readers == READ_IN_ORDER.keys()


def bucket_users() -> Iterator[tuple[str, str]]:
    """(bucket, program) for every bucket that code of a program opens."""
    constants = {
        name: value
        for kept in (state, notifications, erasure, opt_out, workflows, learning)
        for name, value in vars(kept).items()
        if isinstance(value, str) and value in CONTRACTS.buckets
    }
    for program, modules in code().items():
        for module in modules:
            used = module.passed_on & module.imported("ratchet.core.contract") & constants.keys()
            yield from ((constants[name], program) for name in used)
            if "known_keys" in module.called:
                yield state.KEYS, program
            if "KnownOptOuts" in module.called:
                yield opt_out.OPT_OUTS, program
            if "positions" in module.called:
                yield from ((spec.bucket, program) for spec in CONTRACTS.projections.values())
    yield from ((spec.bucket, spec.service) for spec in CONTRACTS.projections.values())


def test_buckets_are_opened_by_their_writers_and_readers_alone() -> None:
    registry = json.loads((ROOT / "topics.json").read_text())["buckets"]
    named = {
        (name, program)
        for name, bucket in registry.items()
        for program in (*bucket["writers"], *bucket.get("readers", ()))
    }
    asked = {(keys.partition(".")[0], program) for program, spec in CONTRACTS.programs.items() for keys in spec.asks}
    used = {(name, program) for name, program in bucket_users() if program not in OPERATORS} - asked
    assert used | {(state.PROBES, "local_stack")} == named


def test_readers_of_a_value_are_readers_of_its_bucket() -> None:
    for bucket in json.loads((ROOT / "topics.json").read_text())["buckets"].values():
        reading = {reader for value in bucket.get("keys", {}).values() for reader in value["readers"]}
        assert reading <= {*bucket["writers"], *bucket.get("readers", ())}


def test_consumers_of_what_agents_wrote_read_large_bodies() -> None:
    bodies = json.loads((ROOT / "topics.json").read_text())["objects"]["bodies/<role>/<sha256>"]
    consumers = {program for topic in CONTRACTS.topics.values() if topic.redacted for program in topic.consumers}
    assert consumers <= {*bodies["readers"]}


def test_every_program_in_the_registry_exists() -> None:
    registry = json.loads((ROOT / "topics.json").read_text())
    entries = [
        *registry["buckets"].values(),
        *registry["objects"].values(),
        *registry["files"].values(),
        *registry["webhooks"].values(),
    ]
    named = {name for entry in entries for name in (*entry["writers"], *entry.get("readers", ()))}
    assert named <= {*PROGRAMS.values(), "engine_local", "local_stack", "vllm_plugin"}

"""The commands by name, each with its purpose and the module that is imported once it is called."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from ratchet.cli.examples import EXAMPLES

Command = Any
"""A command of typer's parser; typer keeps the types of its parts to itself."""


class Entry(NamedTuple):
    """The module of commands, and their line in the list of commands."""

    module: str
    """In this package; its `app` holds the commands."""
    help: str


COMMANDS: Mapping[str, Entry] = {
    "up": Entry("stack", "Start the servers and services on this machine; Ctrl-C stops them in order."),
    "down": Entry(
        "stack",
        "Stop a stack, wherever it was started, and the rest of one that was killed. Exit code 4: no stack runs.",
    ),
    "env": Entry(
        "stack",
        'Print the variables that lead to the running stack, passwords included: `eval "$(ratchet env)"` sets them.',
    ),
    "backup": Entry("backups", "Copy the state of a stack, running or not, into a new folder, secrets included."),
    "restore": Entry("backups", "Put a backup back as the state of a stopped stack, once every file of it is checked."),
    "erase": Entry(
        "erase", "Erase all data of a user, session, agent or trajectory from every store, by ids and never by text."
    ),
    "url": Entry("url", "Print the gateway's base URL for agents, or the address of any part of the running system."),
    "open": Entry("url", "Open the console in the browser, and print its address. Exit code 4: no stack runs."),
    "status": Entry("status", "Show the state of the system. Exit code 3: something is not ready; 4: no stack runs."),
    "doctor": Entry(
        "doctor",
        "Check this machine, the stack and its servers, and say what to do. Exit code 3: warnings alone; 1: a failure.",
    ),
    "logs": Entry(
        "logs",
        "Print the last lines of a service's log, `-f` follows it; `--since` and `--grep` search the logs of 30 days.",
    ),
    "train": Entry("training", "Start a training job, of several roles one each. Exit code 3: not every role has one."),
    "dpo-train": Entry("train", "Train a policy on preference pairs with DPO, on this machine and without a stack."),
    "rm-train": Entry("train", "Train a reward model on preference pairs, on this machine and without a stack."),
    "plan": Entry("plan", "Propose an algorithm and its data for a role, and say why not the others."),
    "eval": Entry(
        "eval",
        "Play the tasks of a file or suite with a policy, grade its answers, and compare it with another one; without"
        " traffic.",
    ),
    "model": Entry(
        "model",
        "Write a base model that `--base-model` takes: SmolLM2 with 135 million parameters, or a GGUF file's.",
    ),
    "cancel": Entry(
        "training",
        "Cancel a job; a running one stops after its train step, with a checkpoint that `resume` goes on from.",
    ),
    "resume": Entry("training", "Let a cancelled or failed job go on from its newest checkpoint, with the same data."),
    "feedback": Entry(
        "feedback",
        "Give feedback on a trajectory; its reward is computed anew. Exit code 3: nothing is stored under the id yet.",
    ),
    "demo": Entry(
        "demo", "Close the whole loop on this machine, in minutes. Exit code 0: every claim of the report holds."
    ),
    "stats": Entry(
        "stats",
        "Counts, outcomes, mean reward, tokens, cost and latency, by agent, domain, model, policy and more, over time.",
    ),
    "analyze": Entry(
        "learning", "Look for patterns in a role's newest trajectories now; it happens every hour anyway."
    ),
    "plugins": Entry(
        "plugins",
        "List all plug-ins: built-in variants and those of installed packages. Exit code 3: one is refused.",
    ),
    "completion": Entry("completion", "Print the completion script of a shell: `source <(ratchet completion bash)`."),
}
"""Commands of their own. The help repeats the first paragraph of their docstring."""

GROUPS: Mapping[str, Entry] = {
    "report": Entry("report", "Print a report: of the last day or week, of a training, of what a role learned."),
    "jobs": Entry("jobs", "List training jobs, newest first; `jobs show` shows one with its curves."),
    "import": Entry(
        "imports", "Import what other systems exported: trajectories, tasks, prompts. Importing twice changes nothing."
    ),
    "export": Entry("exports", "Write stored data to a file, newest first."),
    "trajectories": Entry("trajectories", "Trajectories: list them, or show one with its rewards."),
    "suites": Entry("suites", "Suites of tasks that say how safe a policy is, for every role."),
    "capture": Entry("capture", "Which calls a learner may use, and what to change so that it may use more."),
    "policies": Entry("policies", "Registered policies."),
    "bundles": Entry(
        "bundles", "What policies change of calls: prompts, tools' texts, models. Make, compare, keep as files."
    ),
    "data": Entry("data", "Data made elsewhere, checked and written as files that trainings read."),
    "dataset": Entry("dataset", "Snapshots of training data: build, show, explain, export."),
    "rewards": Entry(
        "rewards", "Rewards: another function over history, compared, then accepted; how good judges are."
    ),
    "preferences": Entry("preferences", "Preference pairs: derive, add, list and export them; how far raters agree."),
    "rollout": Entry("rollout", "Look at rollouts and steer them."),
    "workflows": Entry(
        "workflows", "Instructions as graphs of sub-tasks: run and see them; collect, train and compare planners."
    ),
    "patterns": Entry("patterns", "What goes wrong in a role, or goes otherwise than before: with evidence and cost."),
    "plans": Entry("plans", "What to change because of patterns: approve or reject it, and see what came of it."),
    "workers": Entry("workers", "What does the sub-tasks of workflows: the registry."),
    "storage": Entry("storage", "The object store: remove what nothing needs any more."),
    "config": Entry("config", "The settings of all services: what is in effect, and what is wrong."),
    "broker": Entry("broker", "The broker's users: what each may do, agents' keys, exchanging keys."),
    "certs": Entry("certs", "Certificates of the servers, and the local authority that signs them: TLS of a stack."),
    "keys": Entry("keys", "API keys: create, list, revoke."),
    "audit": Entry("audit", "Who did what: acts and reads, in a log that shows later changes."),
    "optout": Entry("optout", "People, sessions and agents of whom nothing is recorded."),
    "alerts": Entry("alerts", "Alerts: those that hold, what was sent to whom, and a test of the way there."),
    "deadletters": Entry("deadletters", "Messages that could not be handled."),
    "contract": Entry("contract", "The messages, and the effect of a changed schema."),
}
"""Nouns with commands below them."""


HEADINGS: Mapping[str, tuple[str, ...]] = {
    "A first hour": ("demo", "up", "down", "open", "url", "env"),
    "Look": (
        "status",
        "doctor",
        "logs",
        "alerts",
        "audit",
        "jobs",
        "trajectories",
        "stats",
        "capture",
        "plugins",
    ),
    "Roll out": ("bundles", "policies", "rollout", "eval", "suites"),
    "Say what was good": ("feedback", "preferences", "rewards"),
    "Train": ("model", "plan", "train", "cancel", "resume", "dataset", "data", "dpo-train", "rm-train"),
    "Workflows": ("workflows", "workers"),
    "Learn what to change": ("patterns", "plans", "analyze", "report"),
    "Bring and take data": ("import", "export"),
    "Keep it well": (
        "config",
        "keys",
        "optout",
        "broker",
        "certs",
        "deadletters",
        "storage",
        "backup",
        "restore",
        "erase",
        "contract",
        "completion",
    ),
}
"""The commands as `ratchet --help` groups them, each once."""


class NotImported(TyperCommand):
    """Stands for a command as long as only its name and help are needed."""


class Root(TyperGroup):
    """The command `ratchet`: it imports only the command that is called, so `ratchet --help` and Tab stay quick."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        entries = {**COMMANDS, **GROUPS}
        for heading, names in HEADINGS.items():
            for name in names:
                self.add_command(NotImported(name, help=entries[name].help, rich_help_panel=heading))

    def get_params(self, ctx: Any) -> list[Any]:
        """The options, which are all flags: for a default of None, typer would import pydantic."""
        flags: list[Any] = super().get_params(ctx)
        for flag in flags:
            flag.default = False
        return flags

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        """The command that the words call, imported. Raises `typer.TyperException` for an unknown one."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, imported(command), rest


def imported(command: Command) -> Command:
    """The command that a `NotImported` stands for; any other command as it is."""
    return _imported(command.name or "") if isinstance(command, NotImported) else command


@functools.cache
def _imported(name: str) -> Command:
    entry = COMMANDS.get(name) or GROUPS[name]
    group = get_group(import_module(f"ratchet.cli.{entry.module}").app)
    if name not in COMMANDS:
        group.name, group.help = name, entry.help
    made: Command = group if name in GROUPS else group.commands[name]
    _show_examples(made, name)
    return made


def _show_examples(command: Command, words: str) -> None:
    """Have the help of a command, and of those below it, end with its examples."""
    examples = EXAMPLES.get(words)
    if examples is not None:
        command.epilog = "\n\n".join(("Examples:", *(f"  {line}" for line in examples)))
    for name, below in getattr(command, "commands", {}).items():
        _show_examples(below, f"{words} {name}")

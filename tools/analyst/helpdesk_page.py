"""The page of a run of self-learning on the help desk: every figure is of the run's acts."""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps
from textwrap import fill
from typing import Any

from ratchet.local.demo.exams import Proportion
from ratchet_helpdesk.world import MISJUDGED

Figures = dict[str, Any]
DAYS = ("day 1", "day 2")
LETTERS = 120
"""Of a line."""


def page(acts: Figures) -> str:
    """Markdown."""
    mined = _tau_bench(acts["tau_bench"]) if "tau_bench" in acts else []
    parts = [
        *_introduction(acts),
        *_patterns(acts["past"]["analysis"]),
        *_harmful(acts["harmful"]),
        *_helpful(acts["helpful"], acts["second"]["analysis"]),
        *_afterwards(acts),
        *mined,
        "## What this does not show",
        LIMITS,
    ]
    return "\n\n".join(part if part.startswith(("|", "#", ">")) else _filled(part) for part in parts) + "\n"


def _introduction(acts: Figures) -> list[str]:
    began, spent = acts["began"], acts["spent"]
    made = f"""Made by `make self-learning` at commit {began["commit"]}, {began["at"][:16].replace("T", " ")} UTC:
        {spent["wall_s"] / 60:.0f} minutes on {began["cores"]} cores (at its end a load of {spent["load"]:.1f}, in the
        mean of 15 minutes), {spent["cpu_s"] / 60:.0f} minutes of processor time. Every service
        is real, and is used as people use it: `ratchet import`, `analyze`, `patterns`, `plans`, `rollout`."""
    planted = f"""The [help desk](../examples/helpdesk/README.md) has a policy of 0.7 million parameters. The first one,
        `{acts["first_policy"]["policy"]}`, imitates {acts["first_policy"]["tickets"]:,} tickets of a clerk who
        misjudges five kinds of tickets, "refund too late" among them: that is what is planted. It answers the tickets
        of two days, and the world verifies how each ends: {_failing(acts, DAYS[0], "@all")} of the first day's fail,
        and {_failing(acts, DAYS[1], "@all")} of the second's. It plays them when the run begins; they are imported with
        times of the days before, else the run would take two days. {acts["live"]["tickets"]} more are answered live:
        without calls through the gateway a plan says that a gate would refuse it."""
    return ["# Self-learning end to end, on the help desk", made, planted]


def _patterns(run: Figures) -> list[str]:
    looked = f"""`ratchet analyze helpdesk` looks at {run["trajectories"][0]:,} and {run["trajectories"][1]:,}
        trajectories, tests {run["tested"]} claims and opens {len(run["opened"])} patterns:"""
    rows = ["| pattern | stability | reward lost | recommended |", "|---|---|---|---|"]
    for pattern in run["patterns"]:
        lost, stability = pattern["reward_cost"], pattern.get("confidence")
        shown = "of an alert" if stability is None else f"{stability:.2f}"
        rows.append(f"| {_cell(pattern['statement'])} | {shown} | {lost:.0f} | {pattern.get('action', 'note')} |")
    return ["## What goes wrong", looked, "\n".join(rows)]


def _harmful(act: Figures) -> list[str]:
    plan = act["plan"]
    drafted = f"""The first plan for the tickets that come too late is a paragraph of instructions, of {plan["risk"]}
        risk. Its effect is measured among requests that match {_triggers(plan["triggers"])}, what is known before an
        arm is drawn."""
    carried = f"""A language model might follow it; this policy never learned to. There are no held-out tickets yet, so
        that the canary alone judges it. Of its trajectories {_failures(act, "canary")}
        fail, of stable's {_failures(act, "stable")}. The plan: {_shown(plan["state"])}. Its verdict:"""
    text = plan["change"]["bundle"]["instructions"]["text"].replace("\n", "\n> ")
    return ["## A plan that harms is taken back", drafted, f"> {text}", carried, f"> {plan['verdict']}"]


def _helpful(act: Figures, again: Figures) -> list[str]:
    plan, job = act["plan"], act["job"]
    training = plan["change"]["training"]
    hyperparameters = ", ".join(f"`{name}` {value}" for name, value in training["hyperparameters"].items())
    passed = [name for name, outcome in act["gates"].items() if outcome == "passed"]
    seen = f"""The next analysis, of {again["trajectories"][0]:,} and {again["trajectories"][1]:,} trajectories, sees
        the pattern again after the plan that failed. So the analyst drafts what follows instructions, a training:"""
    trained = f"""It has the filter `{dumps(training["dataset"].get("filter"))}` and the hyperparameters of the role's
        last training of that kind: {hyperparameters}. The job takes {job["seconds"]:.0f} s and learns from
        {job["rows"]:,} trajectories. By now the gate has held-out tickets: {act["gate"]}. Passed: {", ".join(passed)}.
        Of the canary's trajectories {_failures(act, "canary")} fail, of stable's {_failures(act, "stable")}. The plan:
        {_shown(plan["state"])}. Its verdict, of those that match {_triggers(plan["triggers"])}, with an interval that
        holds at every look:"""
    return ["## A training that helps", seen, f"> {plan['change']['summary']}", trained, f"> {plan['verdict']}"]


def _afterwards(acts: Figures) -> list[str]:
    counts, periods = acts["compared"]["counts"], (*DAYS, "after")

    def row(name: str, cells: Sequence[str]) -> str:
        return f"| {name} | {' | '.join(cells)} |"

    intro = f"""Agents answer {acts["after"]["tickets"]:,} more tickets with the new policy. The cluster are the failing
        trajectories that match the pattern; shares have 95 % intervals (Wilson)."""
    clusters = [(counts[period]["@cluster"][0], counts[period]["@all"][1]) for period in periods]
    rows = [
        row("", ["first policy, day 1", "first policy, day 2", "new policy"]),
        row("---", ["---"] * len(periods)),
        row("the cluster, of all trajectories", [_share(*cluster) for cluster in clusters]),
        row("failing, of those that match", [_failing(acts, period, "@cluster") for period in periods]),
        row("failing, of all", [_failing(acts, period, "@all") for period in periods]),
    ]
    for kind in sorted(kind for kind in counts["after"] if not kind.startswith("@")):
        name = f"failing, of *{kind}*{', which the clerk misjudged' if kind in MISJUDGED else ''}"
        rows.append(row(name, [_failing(acts, day, kind) for day in periods]))
    return ["## The cluster shrinks", intro, "\n".join(rows), _last_look(acts)]


def _last_look(acts: Figures) -> str:
    report = acts["compared"]["report"]["figures"]
    counted = f"""`ratchet report learning helpdesk` counts {report["plans_validated"]} plan validated and
        {report["plans_rolled_back"]} rolled back."""
    about, look = acts["harmful"]["plan"]["pattern_id"], acts["third"]["analysis"]
    seen = next((pattern for pattern in look["patterns"] if pattern["pattern_id"] == about), None)
    is_there = seen is not None and seen["seen_at"] == look["until"]
    return f"""The last analysis, of {look["trajectories"][0]:,} and {look["trajectories"][1]:,} trajectories,
        {"still sees" if is_there else "does not see"} the pattern{"" if seen else ", which is closed"}: its later
        window, a day, holds the first policy's live tickets and those of both canaries as well, and a run closes a
        pattern when all of its later window is younger than the last sight of it. {counted}"""


def _tau_bench(mined: Figures) -> list[str]:
    intro = f"""{mined["trajectories"]} tries of {mined["tasks"]} tasks of tau-bench's airline by GPT-4o, as its
        repository publishes them; {mined["failing"]} fail. They have no times: the first half of each task's tries
        stands for the earlier window. The service refuses windows of {mined["windows"][0]} and {mined["windows"][1]} as
        too few. Mined all the same, at the level {mined["alpha"]:g} of a single run, they give {len(mined["tested"])}
        claims, of which {mined["reported"]} are borne out:"""
    rows = ["| claim, formed on half of the tries | p of both windows |", "|---|---|"]
    rows += [f"| {_cell(claim)} | {p:.3g} |" for claim, p in mined["tested"]]
    return ["## On real trajectories: mining alone", intro, "\n".join(rows)]


def _failing(acts: Figures, period: str, group: str) -> str:
    return _share(*acts["compared"]["counts"][period].get(group, (0, 0)))


def _failures(act: Figures, arm: str) -> str:
    counts = act["rollout"]["arms"][arm]
    return f"{counts['failures']} of {counts['trajectories']}"


def _share(count: int, total: int) -> str:
    if not total:
        return "none"
    low, high = Proportion(count, total).interval
    return f"{count:,} of {total:,} ({count / total:.1%}; {low:.1%} to {high:.1%})"


def _triggers(triggers: Sequence[Figures]) -> str:
    return " and ".join(f'{trigger["attribute"]} "{trigger["value"]}"' for trigger in triggers) or "nothing"


def _shown(state: str) -> str:
    return f"**{state.replace('_', ' ')}**"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _filled(text: str) -> str:
    return fill(" ".join(text.split()), LETTERS, break_long_words=False, break_on_hyphens=False)


LIMITS = """One run of one small world, in an order that is scripted: with held-out tickets a gate would have met the
    first plan before any canary. The installation offers `sft` alone. The training is on all of the
    role that succeeded and not on the cluster: a filter knows domains, and no kinds of tickets. Kinds are a label that
    agents write at the end, by the ticket and not by how it went. The rows before
    and after are no effect: that is the interval of the arms."""

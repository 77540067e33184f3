"""Self-learning end to end on the help desk: `python -m tools.analyst.helpdesk` runs it and writes its report.

All services are real, on a stack of this machine. A first policy imitates a clerk who misjudges kinds of tickets; the
analyst finds them in two days of its work, and its plans are approved as a person would: instructions, which a policy
of 0.7 million parameters does not understand and a canary takes back, then a training. What is done is kept, act by
act, in the run's directory: a run that was interrupted goes on.

The tickets of the two days are played by the first policy when the run begins and imported with times of the days
before: else the run would take two days.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from ratchet.analyst.clickhouse_episodes import StoredEpisodes
from ratchet.analyst.domain.looking import RATE
from ratchet.analyst.domain.windows import SETTLED
from ratchet.analyst.effects import stored_episodes
from ratchet.analyst.mining import associations
from ratchet.analyst.mining.base import Hypothesis
from ratchet.analyst.mining.features import EpisodeBuilder
from ratchet.analyst.mining.mine import DETECTORS, FamilyTests, judged
from ratchet.analyst.mining.testing import Pools
from ratchet.core.contract.learning import Trigger
from ratchet.core.errors import Unavailable
from ratchet.extras.importers.base import ImportedTrajectory, ImportOptions
from ratchet.extras.importers.tau_bench import trajectory_of
from ratchet.local.demo.agents_process import Shift, crew
from ratchet.local.demo.clickhouse_facts import Facts
from ratchet.local.demo.connections import Connections, connect
from ratchet.local.demo.exams import heldout_gate
from ratchet.local.demo.plan import DEMO, stack_environment, write_held_out
from ratchet.local.demo.progress import Progress
from ratchet.local.demo.scenario import DemoFailed, Scenario, run_command
from ratchet.local.local_stack.plan import shared_of
from ratchet.local.local_stack.settings import StackSettings
from ratchet.local.local_stack.stack import Stack
from ratchet_helpdesk.agent import Agent, in_parallel, open_client
from ratchet_helpdesk.agents import AGENT_ID
from ratchet_helpdesk.world import TRAIN, Task, kind_of, tool_definitions
from tools.analyst.helpdesk_page import page

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "self-learning-report.md"
ROLE, KIND = DEMO.world.role, "refund too late"
A_DAY, AFTER = 1_280, 1_280
"""Tickets of each day of the history, and those that the new policy answers once it serves."""
LIVE = 64
"""Those of the first policy through the gateway: without any, no plan is approved."""
AGES = (timedelta(hours=36), timedelta(hours=24))
"""How old the days are. The younger one is of the later window in the first analysis, of the earlier one afterwards."""
CANARY = replace(
    DEMO.rollouts, stages=(50,), stage_min_s=(1,), stage_min_trajectories=(600,), suites=(), horizon_s=60.0
)
PLAN = replace(DEMO, rollouts=CANARY)
AT_ONCE, WAIT_S = 24, 1800.0
LOOK_S = 5.0
"""Between two looks at what a command prints: a process each."""
HISTORY = "history.jsonl"
ENDED = ("validated", "rolled_back", "rejected")
T = TypeVar("T")
Figures = dict[str, Any]
"""What an act leaves for the page: JSON."""


def conversation(record: dict[str, Any]) -> ImportedTrajectory:
    """A ticket of the history, for `ratchet import python`."""
    started_at, ended_at = (datetime.fromisoformat(record[name]) for name in ("started_at", "ended_at"))
    return ImportedTrajectory(
        id=record["task"],
        session=record["task"],
        task=record["task"],
        agent=AGENT_ID,
        started_at=started_at,
        ended_at=ended_at,
        tools=tool_definitions(),
        scores={"solved": float(record["solved"])},
        labels={"task_type": record["kind"]},
        messages=record["messages"],
    )


@dataclass
class Records:
    """What the acts of a run left, in its directory."""

    path: Path

    def read(self) -> Figures:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def keep(self, name: str, figures: object) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({**self.read(), name: figures}, indent=1))


@dataclass
class Trial:
    """A running stack, and how far the run has come."""

    directory: Path
    connections: Connections
    records: Records
    progress: Progress

    async def act(self, name: str, what: Callable[[Trial], Awaitable[Figures]]) -> None:
        """Once in a run."""
        if name in self.records.read():
            return
        self.progress.note(f"{name} begins")
        began = time.monotonic()
        figures = await what(self)
        self.records.keep(name, {**figures, "seconds": round(time.monotonic() - began)})

    async def typed(self, *words: str) -> Any:
        """What a command of `ratchet` prints as JSON."""
        return json.loads(await run_command(*words, "--json", "--dir", str(self.directory)))

    async def first_policy(self) -> Figures:
        await Scenario(PLAN, self.connections, self.progress, self.directory).first_policy()
        route = await self.connections.route(ROLE)
        assert route is not None  # noqa: S101 - the first policy serves
        assert route.stable is not None  # noqa: S101 - likewise
        return {"policy": route.stable.name, "tickets": PLAN.tickets.examples}

    async def past(self) -> Figures:
        """Two days of tickets by the first policy, and what the analyst sees in them."""
        now = datetime.now(UTC)
        path = self.directory / HISTORY
        with path.open("w") as file:
            for day, age in enumerate(AGES):
                for place, record in enumerate(await self._played(700 + day)):
                    at = now - age + timedelta(milliseconds=20 * place)
                    times = {"started_at": at.isoformat(), "ended_at": (at + timedelta(seconds=2)).isoformat()}
                    file.write(json.dumps({**record, **times}) + "\n")
        module = f"{__spec__.name}:{conversation.__name__}"
        options = ("--role", ROLE, "--domain", PLAN.world.domain, "--outcome", "solved", "--model", "helpdesk")
        await self.typed("import", "python", module, str(path), *options)
        await self._rewarded(len(AGES) * A_DAY + PLAN.tickets.examples)
        return {"days": [(now - age).isoformat() for age in AGES], "analysis": await self.analyzed()}

    async def _played(self, seed: int) -> list[Figures]:
        """Tickets that the first policy answers, by its name: a call of a named policy is no work of an agent."""
        name, records = self.records.read()["first_policy"]["policy"], list[Figures]()
        async with open_client(self.connections.gateway_url) as client:
            agent = Agent(client, name)

            async def work(task: Task) -> None:
                verdict, messages = await agent.converse(task, f"{HISTORY}-{task.task_id}")
                ended = {"kind": kind_of(task), "solved": verdict.success, "messages": messages}
                records.append({"task": task.task_id, **ended})

            await in_parallel(AT_ONCE, iter(PLAN.world.draw_tasks(TRAIN, A_DAY, seed)), work)
        return records

    async def _rewarded(self, count: int) -> None:
        facts = Facts(self.connections.warehouse, ROLE)

        async def is_rewarded() -> bool | None:
            return await facts.rewarded() >= count or None

        await _until(f"{count} trajectories have a reward", is_rewarded)

    async def analyzed(self) -> Figures:
        """A run of the analyst, with the patterns that are open after it and their plans."""
        run = await self.typed("analyze", ROLE)
        patterns = (await self.typed("patterns", "list", ROLE))["patterns"]
        return {**run, "at": datetime.now(UTC).isoformat(), "patterns": patterns}

    async def drafted(self, kind: str) -> Figures:
        """The plan of a kind for the pattern about tickets that come too late."""

        async def plan() -> Figures | None:
            plans = (await self.typed("plans", "list", ROLE))["plans"]
            about = self.pattern()["pattern_id"]
            return next((p for p in plans if p["pattern_id"] == about and p["change"]["kind"] == kind), None)

        return await _until(f"a plan of the kind {kind} is drafted", plan)

    def pattern(self) -> Figures:
        """The pattern about the misjudged kind, as the first analysis stated it."""
        patterns = self.records.read()["past"]["analysis"]["patterns"]
        about = {"attribute": "task_type", "value": KIND}
        return next(pattern for pattern in patterns if about in pattern["triggers"])

    async def carried_out(self, kind: str, seed: int) -> Figures:
        """The plan of a kind, approved and carried out with agents at work while it has a canary."""
        plan_id = (await self.drafted(kind))["plan_id"]
        if (await self.shown(plan_id))["state"] == "draft":
            await self.typed("plans", "approve", plan_id, "--reason", "to see what it does")

        async def canary() -> str | None:
            plan, rollout = await self.shown(plan_id), await self.connections.rollout(ROLE)
            if plan["state"] in ENDED:
                return plan["state"]
            if rollout is None or rollout.candidate.name != plan.get("policy"):
                return None
            return rollout.state if rollout.state in ("running", "soaking") or rollout.finished_at else None

        await _until("the plan has a canary", canary)
        async with self.agents(seed, None) as at_work:

            async def is_decided() -> bool | None:
                rollout = await self.connections.rollout(ROLE)
                return (rollout is not None and rollout.finished_at is not None) or None

            await _until("the canary is decided", is_decided)
            await at_work.stop()

        async def is_over() -> Figures | None:
            plan = await self.shown(plan_id)
            return plan if plan["state"] in ENDED else None

        plan = await _until("the plan has ended", is_over)
        rollout = await self.connections.rollout(ROLE)
        assert rollout is not None  # noqa: S101 - it was decided
        (policy,) = [p for p in await self.connections.policies(ROLE) if p.version == rollout.candidate.version]
        gate = heldout_gate(policy)
        job = await self.connections.job(plan["job_id"]) if plan.get("job_id") else None
        spent = (job.finished_at - job.created_at).total_seconds() if job and job.finished_at else None
        return {
            "plan": plan,
            "rollout": {"reason": rollout.reason, "arms": _json(rollout.arms), "state": rollout.state},
            "gates": {name: result["outcome"] for name, result in (policy.gate or {}).items()},
            "gate": gate.reason if gate else None,
            "job": {"rows": job.trajectories, "seconds": spent} if job else None,
            "ended_at": datetime.now(UTC).isoformat(),
        }

    @asynccontextmanager
    async def agents(self, seed: int, tasks: int | None) -> AsyncIterator[Any]:
        shift = Shift(self.connections.gateway_url, seed, 1, PLAN.agents, tasks, PLAN.world)
        async with crew(shift, self.directory / "logs" / "agents.log") as at_work:
            yield at_work

    async def worked(self, seed: int, tasks: int) -> Figures:
        """Agents answer so many tickets with what serves."""
        began = datetime.now(UTC)
        async with self.agents(seed, tasks) as at_work:
            tally = await at_work.finish()
        times = {"since": began.isoformat(), "until": datetime.now(UTC).isoformat()}
        return {"solved": tally.successes, "tickets": tally.trajectories, **times}

    async def shown(self, plan_id: str) -> Figures:
        """A plan; of a draft the state is left out."""
        return {"state": "draft", **(await self.typed("plans", "show", plan_id))["plan"]}

    async def looked_again(self, act: str) -> Figures:
        """An analysis whose later window holds what an act ended with."""
        ended = datetime.fromisoformat(self.records.read()[act].get("until") or self.records.read()[act]["ended_at"])
        due = ended + SETTLED + timedelta(minutes=1, seconds=10)  # windows end with a minute
        self.progress.note(f"waits until {due:%H:%M:%S}: the analyst looks at what ended {SETTLED} ago")
        await asyncio.sleep(max(0.0, (due - datetime.now(UTC)).total_seconds()))
        return {"analysis": await self.analyzed()}

    async def seen_again(self) -> Figures:
        """Analyses, minute by minute, until one sees the pattern after the end of the plan that harmed."""
        act, about = self.records.read()["harmful"], self.pattern()["pattern_id"]
        async with asyncio.timeout(WAIT_S):
            while True:
                figures = await self.looked_again("harmful")
                seen = next(each for each in figures["analysis"]["patterns"] if each["pattern_id"] == about)
                if datetime.fromisoformat(seen["seen_at"]) > datetime.fromisoformat(act["ended_at"]):
                    return figures
                await asyncio.sleep(60.0)

    async def compared(self) -> Figures:
        """How tickets ended on both days before, and once the new policy served."""
        records = self.records.read()
        after = records["after"]
        days = [datetime.fromisoformat(day) for day in records["past"]["days"]]
        periods = {f"day {n}": (day, day + timedelta(minutes=30)) for n, day in enumerate(days, 1)}
        periods["after"] = (datetime.fromisoformat(after["since"]), datetime.fromisoformat(after["until"]))
        triggers = [Trigger(**trigger) for trigger in self.pattern()["triggers"]]
        read = stored_episodes(StoredEpisodes(self.connections.warehouse))
        counts: Figures = {}
        for name, (since, end) in periods.items():
            episodes = await read(ROLE, since, end, triggers)
            failed = episodes.measures["failure"] == 1.0
            kinds = episodes.columns["task_type"]
            by_kind = {kind: kinds.codes == place for place, kind in enumerate(kinds.values)}
            groups = {
                **by_kind,
                "@all": np.ones(len(episodes), dtype=np.bool_),
                "@cluster": episodes.matching(triggers),
            }
            counts[name] = {kind: [int((mask & failed).sum()), int(mask.sum())] for kind, mask in groups.items()}
        return {"counts": counts, "report": await self.typed("report", "learning", ROLE)}


async def _until(what: str, look: Callable[[], Awaitable[T | None]]) -> T:
    """Look until there is something to see. Raises `DemoFailed`."""
    try:
        async with asyncio.timeout(WAIT_S):
            while True:
                with suppress(Unavailable):
                    if (seen := await look()) is not None:
                        return seen
                await asyncio.sleep(LOOK_S)
    except TimeoutError as error:
        raise DemoFailed(f"waited {WAIT_S:g} s in vain until {what}") from error


def _note(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _json(value: Any) -> Any:
    return msgspec.to_builtins(value)


@asynccontextmanager
async def stack(directory: Path, records: Records, *, held_out: bool) -> AsyncIterator[Trial]:
    """The stack on what it stored before; `held_out`: its gate has the held-out tickets."""
    await asyncio.to_thread(write_held_out, PLAN, directory)
    env = dict(stack_environment(PLAN, directory))
    if not held_out:
        del env["RATCHET_CANARY_TASK_FILES"]
    # Imitation of what succeeded is what this world's model learns by in one training.
    env["RATCHET_COORDINATOR_ALGORITHMS"] = json.dumps(["sft"])
    progress = Progress(listen=_note)
    settings = StackSettings(directory=directory, free_ports=True, analyst=True, env=env)
    async with Stack(settings) as running:
        shared = shared_of(running.env).model_copy(update={"data_dir": directory / "data" / "tool"})
        async with connect(running, shared) as connections:
            yield Trial(directory, connections, records, progress)


ACTS: Mapping[bool, Mapping[str, Callable[[Trial], Awaitable[Figures]]]] = {
    False: {
        "first_policy": Trial.first_policy,
        "past": Trial.past,
        "live": lambda trial: trial.worked(799, LIVE),
        "harmful": lambda trial: trial.carried_out("bundle", 800),
        "meanwhile": lambda trial: trial.worked(801, A_DAY // 2),
    },
    True: {
        "second": Trial.seen_again,
        "helpful": lambda trial: trial.carried_out("training", 802),
        "after": lambda trial: trial.worked(803, AFTER),
        "compared": Trial.compared,
        "third": lambda trial: trial.looked_again("after"),
    },
}
"""In their order, by whether the gate has held-out tickets."""


async def run(directory: Path, records: Records) -> None:
    running = asyncio.current_task()
    assert running is not None  # noqa: S101 - this is one
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    for held_out, acts in ACTS.items():
        if acts.keys() <= records.read().keys():
            continue
        async with stack(directory, records, held_out=held_out) as trial:
            for name, act in acts.items():
                await trial.act(name, act)


def tau_bench(path: Path) -> Figures:
    """What mining makes of tau-bench results: real trajectories, and few."""
    records = json.loads(path.read_text())
    half = (max(record["trial"] for record in records) + 1) // 2
    builders = EpisodeBuilder(), EpisodeBuilder()
    for record in records:
        trajectory = trajectory_of(record, ImportOptions())
        builder = builders[record["trial"] >= half]
        builder.add(trajectory, reward=record["reward"], components={}, feedback=False)
    before, now = (builder.build() for builder in builders)
    detected = [claim for detector in DETECTORS for claim in detector(before, now, 0)]
    family = [*detected, *associations.hypotheses(before, now)]
    tests = FamilyTests.of(Pools.of(before, now), family, RATE, 0)
    return {
        "trajectories": len(records),
        "tasks": len({record["task_id"] for record in records}),
        "failing": sum(record["reward"] < 1 for record in records),
        "windows": [len(before), len(now)],
        "alpha": RATE,
        "tested": [(_in_words(claim), float(p)) for claim, p in zip(family, tests.p_value, strict=True)],
        "reported": len(judged(before, now, tests, alpha=RATE).findings),
    }


def _in_words(claim: Hypothesis) -> str:
    named = ", ".join(f'{trigger.attribute} "{trigger.value}"' for trigger in claim.triggers)
    return f"{claim.finding}: {claim.measure}, {named or 'all'}"


def _spent() -> Mapping[str, float]:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {"cpu_s": sum(usage.ru_utime + usage.ru_stime for usage in (own, children))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--directory", type=Path, default=ROOT / ".cache" / "self-learning", help="where the run is kept"
    )
    parser.add_argument("--tau-bench", type=Path, help="tau-bench results, which are mined as well")
    arguments = parser.parse_args()
    records = Records(arguments.directory.resolve() / "acts.json")
    if "began" not in records.read():
        commit = subprocess.run(
            ["/usr/bin/env", "git", "describe", "--always", "--dirty", "--abbrev=8"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        begun = {"at": datetime.now(UTC).isoformat(), "commit": commit.stdout.strip(), "cores": os.cpu_count()}
        records.keep("began", begun)
    if arguments.tau_bench is not None:
        records.keep("tau_bench", tau_bench(arguments.tau_bench))
    began, before = time.monotonic(), records.read().get("spent", {"cpu_s": 0.0, "wall_s": 0.0})
    try:
        asyncio.run(run(arguments.directory.resolve(), records))
    finally:
        spent = {"cpu_s": before["cpu_s"] + _spent()["cpu_s"], "wall_s": before["wall_s"] + time.monotonic() - began}
        spent["load"] = os.getloadavg()[2]
        records.keep("spent", spent)
        if "compared" in records.read():
            PAGE.write_text(page(records.read()), encoding="utf-8")


if __name__ == "__main__":
    main()

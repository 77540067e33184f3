"""The demo's story: make a first policy, improve it in cycles, offer a bad one. Every step goes through the product."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ratchet.bus.tasks import end
from ratchet.client import ClientSettings
from ratchet.core.contract.policy_manifest import MODEL, PolicyManifest
from ratchet.core.contract.state import Job, PolicyVersion
from ratchet.core.errors import RatchetError, Unavailable
from ratchet.core.stores.policies import Policy, publish_policy, tokenizer_digest, upload_files
from ratchet.local.demo.agents_process import Shift, crew
from ratchet.local.demo.clickhouse_facts import Facts
from ratchet.local.demo.connections import Connections
from ratchet.local.demo.exams import heldout_gate, read_exam, take_exam, write_exam
from ratchet.local.demo.plan import EXAMS, Plan, Supervised, bad_job, cycle_job, drill_job, ticket_job
from ratchet.local.demo.progress import AGENTS, CANARY, COLLECTOR, GATE, TRAINER, Progress
from ratchet_helpdesk.agents import Tally
from ratchet_helpdesk.base_model import MATRIX_STD, Shape, write_base_model
from ratchet_helpdesk.heldout import GREEDY, SAMPLED
from ratchet_helpdesk.logbook import drills, publish_chats
from ratchet_helpdesk.shipped import copy_bad_policy

T = TypeVar("T")
U = TypeVar("U")

POLL_S = 0.25
JOB_S, GATE_S, STORED_S = 1800.0, 900.0, 900.0
"""Longest waits for a job, for the gates, and until everything published has its reward: room for a busy machine."""
DECIDED = {"promoted", "rolled_back", "refused", "aborted", "suspended", "withdrawn"}
WITH_TRAFFIC = {"running", "soaking"}
OPERATOR = "demo operator"
MODES = (GREEDY, SAMPLED)


class DemoFailed(RatchetError):
    """The loop did not close."""


@dataclass(slots=True)
class Story:
    """What the report needs to know of what was done."""

    bad_version: int | None = None
    logged: int = 0
    """Tickets that the clerks logged,"""
    ended: int = 0
    """and tickets that agents played to their end: each must have a reward."""
    unanswered: int = 0
    """Tickets that agents gave up because the gateway did not answer; those that began have a reward too."""


class _Imported(msgspec.Struct):
    """What `ratchet policies import --json` prints."""

    digest: str


class Scenario:
    """One run of a plan against a running stack."""

    def __init__(self, plan: Plan, connections: Connections, progress: Progress, directory: Path) -> None:
        self._plan = plan
        self._world = plan.world
        self._connections = connections
        self._progress = progress
        self._directory = directory
        self._logs = directory / "logs"
        self._exams = directory / EXAMS
        self._facts = Facts(connections.warehouse, plan.world.role)
        self._shifts = 0
        self._base: Policy | None = None
        """The package's base model, once it is stored."""
        self.story = Story()

    async def run(self) -> None:
        """The whole story. Raises `DemoFailed` where it cannot go on."""
        await self.first_policy()
        await self.improve()
        await at_once(self.examine_stable(), self.offer_bad_policy())
        await self.settle()

    async def first_policy(self) -> None:
        """From a base model to the first policy, which imitates the clerk."""
        connections, plan = self._connections, self._plan
        client = ClientSettings(shared=connections.shared)
        if plan.drills is None:
            with self._progress.step("SmolLM2 is unpacked, and tickets are logged", COLLECTOR):
                base = str(await asyncio.to_thread(real_model))
                await self._publish_tickets(client)
        elif plan.shipped:
            with self._progress.step(f"{plan.tickets.examples:,} tickets of a biased clerk are logged", COLLECTOR):
                self._base = await asyncio.to_thread(self._publish_base_model)
                base = self._base.uri
                await self._publish_tickets(client)
        else:
            base = await self._drilled(plan.drills, client)
        self.story.logged = plan.tickets.examples + (0 if plan.shipped else plan.bad.examples)
        await self.settle()
        with self._progress.step("v1 learns to imitate the logged tickets of a biased clerk", TRAINER):
            job = await self._train(ticket_job(plan, base))

            async def serves() -> bool | None:
                policies = await connections.policies(self._world.role)
                stable = [policy.training_job_id for policy in policies if policy.stage == "stable"]
                return job.training_job_id in stable or None

            await until("the first policy serves", serves, GATE_S)
        self._progress.note("v1 serves all traffic")

    async def _drilled(self, recipe: Supervised, client: ClientSettings) -> str:
        """A base model, made of random weights by drills, while tickets are logged; returns its uri."""
        plan, role = self._plan, self._world.base_role
        random_model = await asyncio.to_thread(self._publish_base_model)
        with self._progress.step(f"{recipe.examples:,} drills are logged", COLLECTOR):
            await publish_chats("drill-book", role, drills(recipe.examples, plan.seed), self._world.tools, client)
            await self._until_stored(role, recipe.examples)
        logging = asyncio.create_task(self._publish_tickets(client))
        with self._progress.step("a base model learns from the drills to call tools", TRAINER):
            base = await self._train(drill_job(plan, recipe, random_model.uri))
            await logging
        if base.artifacts is None or base.artifacts.final_checkpoint is None:
            raise DemoFailed(f"job {base.algorithm} completed without a policy")
        return base.artifacts.final_checkpoint

    async def improve(self) -> None:
        """Cycles, until enough policies were promoted by evidence."""
        plan, promoted = self._plan, 0
        for number in range(1, plan.max_cycles + 1):
            with self._progress.step(f"cycle {number}: agents answer tickets with the stable policy", AGENTS):
                async with crew(self._shift(plan.tasks), self._logs / "agents.log") as agents:
                    tally = await agents.finish()
                self._count(tally)
                self._progress.note(f"agents solved {tally.successes} of {tally.trajectories} training tickets")
            with self._progress.step(f"cycle {number}: the next policy learns from their rewards", TRAINER):
                await self.settle()
                job, _ = await at_once(self._train(cycle_job(plan, number)), self.examine_stable())
            version = (await self._registered(job=job)).version
            with self._progress.step(f"cycle {number}: the gate tests v{version} on held-out tickets", GATE):
                state = await self._after_gates(version)
            await self._note_gate(version)
            if state != "refused":
                with self._progress.step(f"cycle {number}: v{version} gets a share of the traffic", CANARY):
                    state = await self._canary(version)
            promoted += state == "promoted"
            if promoted == plan.promotions:
                return
        raise DemoFailed(f"{promoted} of {plan.promotions} policies were promoted in {plan.max_cycles} cycles")

    async def offer_bad_policy(self) -> None:
        """A policy that calls tools well and decides badly: refused by the gate, then rolled back by evidence."""
        if self._plan.shipped:
            with self._progress.step(
                "a bad policy is imported, which imitates a clerk who turns the rules round", GATE
            ):
                # The bad policy of the package is offered as any other adapter is.
                assert self._base is not None  # noqa: S101 - it is the base that the first policy began with
                with tempfile.TemporaryDirectory(prefix="ratchet-bad-") as folder:
                    await asyncio.to_thread(copy_bad_policy, Path(folder))
                    options = ["--role", self._world.role, "--base", self._base.uri, "--dir", str(self._directory)]
                    imported = await run_command("policies", "import", folder, "--json", *options)
                digest = msgspec.json.decode(imported, type=_Imported).digest
                bad = await self._registered(digest=digest)
        else:
            with self._progress.step("a bad policy learns to imitate a clerk who turns the rules round", TRAINER):
                job = await self._train(bad_job(self._plan))
            bad = await self._registered(job=job)
        self.story.bad_version = bad.version
        with self._progress.step(f"the gate tests the bad v{bad.version} on held-out tickets", GATE):
            state = await self._after_gates(bad.version)
        await self._overrule(bad.version, state)

    async def _overrule(self, version: int, state: str) -> None:
        """A bad policy gets traffic although a gate refused it, until evidence takes it back."""
        if state != "refused":
            raise DemoFailed(f"the gate let the bad policy v{version} through ({state})")
        await self._note_gate(version)
        with self._progress.step(f"an operator overrides the gate: v{version} gets a share of the traffic", CANARY):
            await self._connections.start_rollout(
                self._world.role, version, actor=OPERATOR, reason="to show that the canary catches it"
            )
            state = await self._canary(version)
        if state != "rolled_back":
            raise DemoFailed(f"the bad policy v{version} was not rolled back ({state})")

    def _publish_base_model(self) -> Policy:
        """Store the base model, with the package's weights or random ones; training starts from its uri."""
        plan, objects = self._plan, self._connections.objects
        with tempfile.TemporaryDirectory(prefix="ratchet-base-") as folder:
            directory = Path(folder)
            write_base_model(directory, None if plan.shipped else plan.seed, Shape())
            manifest = PolicyManifest(
                kind=MODEL,
                base_model="drilled" if plan.shipped else "random",
                files=upload_files(objects, directory),
                role=self._world.base_role,
                created_at=self._connections.bus.now(),
                hyperparameters={"seed": plan.seed, "matrix_std": MATRIX_STD},
                tokenizer_digest=tokenizer_digest(directory),
            )
        return publish_policy(objects, manifest)

    async def _publish_tickets(self, client: ClientSettings) -> None:
        """Publish what the clerks logged; returns when all is stored in the stream."""
        plan, world = self._plan, self._world
        logged = world.logged(plan.tickets.examples, plan.seed)
        await publish_chats("clerk", world.role, logged, world.tools, client)
        if not plan.shipped:
            bad_logged = world.bad_logged(plan.bad.examples, plan.seed)
            await publish_chats("stand-in", world.role, bad_logged, world.tools, client)

    async def _canary(self, version: int) -> str:
        """Traffic until the verdict; its trajectories are the next cycle's data."""
        async with crew(self._shift(None), self._logs / "agents.log") as agents:
            await until(
                f"v{version} has a verdict", lambda: self._rollout_state(version, DECIDED), self._plan.canary_deadline_s
            )
            self._count(await agents.stop())
        rollout = await self._connections.rollout(self._world.role)
        assert rollout is not None  # noqa: S101 - it has just been decided

        async def decided() -> bool | None:
            ends = {"promote", "roll_back", "abort"}
            return (
                any(
                    decision.version == version and decision.verdict in ends
                    for decision in await self._facts.decisions()
                )
                or None
            )

        # The report reads the decision from the warehouse.
        await until(f"the decision about v{version} is stored", decided, STORED_S)
        self._progress.note(f"v{version} {rollout.state.replace('_', ' ')}: {rollout.reason}")
        return rollout.state

    async def _after_gates(self, version: int) -> str:
        """`refused`, or a state with traffic."""
        states = DECIDED | WITH_TRAFFIC | {"awaiting_approval"}
        state = await until(f"v{version} passed its gates", lambda: self._rollout_state(version, states), GATE_S)
        if state == "awaiting_approval":
            raise DemoFailed(f"the gate could not decide about v{version}: see the deployer's log")
        return state

    async def _note_gate(self, version: int) -> None:
        policies = await self._connections.policies(self._world.role)
        (policy,) = [policy for policy in policies if policy.version == version]
        verdict = "refused" if policy.stage == "refused" else "passed"
        compared = heldout_gate(policy)
        self._progress.note(f"the gate: v{version} {verdict}{f': {compared.reason}' if compared else ''}")

    async def examine_stable(self) -> None:
        """Have the policy that serves answer the held-out tickets, greedy and sampled, if it has not yet."""
        role, rollouts = self._world.role, self._plan.rollouts
        route = await self._connections.route(role)
        assert route is not None  # noqa: S101 - the first policy serves
        assert route.stable is not None  # noqa: S101 - likewise
        name = f"{role}@{route.stable.version}"
        if read_exam(self._exams, name) is not None:
            return
        exam = await take_exam(
            self._connections.gateway_url,
            route.stable.name,
            self._world,
            rollouts.heldout_tasks,
            rollouts.heldout_seed,
        )
        write_exam(self._exams, name, exam)
        solved = (
            f"{mode} {exam.success(mode)}, misjudged kinds {exam.success(mode, self._world.misjudged)}"
            for mode in MODES
        )
        self._progress.note(f"v{route.stable.version} on held-out tickets: {'; '.join(solved)}")

    def _shift(self, tasks: int | None) -> Shift:
        """So many tickets, each with its tries; or tickets without end, each once: canaries count customers."""
        self._shifts += 1
        tries = self._plan.tries if tasks is not None else 1
        seed = 100 * (self._plan.seed + 1) + self._shifts
        return Shift(self._connections.gateway_url, seed, tries, self._plan.agents, tasks, self._world)

    def _count(self, tally: Tally) -> None:
        self.story.ended += tally.trajectories
        self.story.unanswered += tally.errors

    async def _train(self, body: Mapping[str, Any]) -> Job:
        """Submit a job and wait for its end. Raises `DemoFailed` when it fails."""
        job_id = await self._connections.submit(body)

        async def ended() -> Job | None:
            job = await self._connections.job(job_id)
            return job if job is not None and job.finished_at is not None else None

        job = await until(f"job {body['algorithm']} ended", ended, JOB_S)
        if job.state != "completed":
            reason = job.error.message if job.error else "no reason given"
            raise DemoFailed(f"job {job.algorithm} {job.state}: {reason}")
        spent = (job.finished_at - job.created_at).total_seconds() if job.finished_at else 0.0
        loss = f", loss {job.metrics.loss:.3f}" if job.metrics and job.metrics.loss is not None else ""
        self._progress.note(f"{job.algorithm} on {job.trajectories or 0:,} trajectories in {spent:.0f} s{loss}")
        return job

    async def _registered(self, *, job: Job | None = None, digest: str | None = None) -> PolicyVersion:
        """The version that the policy of a job, or one with this digest, got."""

        async def registered() -> PolicyVersion | None:
            for policy in await self._connections.policies(self._world.role):
                if policy.digest == digest or (job is not None and policy.training_job_id == job.training_job_id):
                    return policy
            return None

        return await until("the policy is registered", registered, GATE_S)

    async def _rollout_state(self, version: int, states: set[str]) -> str | None:
        rollout = await self._connections.rollout(self._world.role)
        if rollout is None or rollout.candidate.version != version:
            return None
        return rollout.state if rollout.state in states else None

    async def _until_stored(self, role: str, number: int) -> None:
        """Until that many trajectories of a role have a reward."""
        facts = Facts(self._connections.warehouse, role)

        async def stored() -> bool | None:
            return await facts.rewarded() >= number or None

        await until(f"{number} trajectories of {role} have a reward", stored, STORED_S)

    async def settle(self) -> None:
        """Wait until every ticket that clerks logged and agents ended has its reward."""
        await self._until_stored(self._world.role, self.story.logged + self.story.ended)


async def until(what: str, look: Callable[[], Awaitable[T | None]], deadline_s: float) -> T:
    """Look until there is something to see; a busy machine drops one look or another. Raises `DemoFailed` at the
    deadline."""
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                with suppress(Unavailable):
                    if (result := await look()) is not None:
                        return result
                await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        raise DemoFailed(f"waited {deadline_s:g} s in vain until {what}") from error


async def run_command(*arguments: str) -> bytes:
    """What a command of `ratchet` prints. Raises `DemoFailed` with its words where it fails."""
    command = [sys.executable, "-m", "ratchet.cli", *arguments]
    done = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    out, err = await done.communicate()
    if done.returncode != 0:
        raise DemoFailed(f"ratchet {arguments[0]} {arguments[1]} failed: {err.decode(errors='replace').strip()}")
    return out


async def at_once(first: Coroutine[Any, Any, T], second: Coroutine[Any, Any, U]) -> tuple[T, U]:
    """Both at the same time; where one fails the other is ended."""
    tasks = asyncio.create_task(first), asyncio.create_task(second)
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end(*tasks)


def real_model() -> Path:
    """The directory of SmolLM2, made where there is none yet. Raises `NoRealModel`."""
    from ratchet.local.smollm2 import smollm2  # noqa: PLC0415 - the extra `real` is needed only here

    return smollm2()

"""From tries that differ to pairs, a snapshot of pairs, and a policy trained by DPO, on real servers."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from ratchet.bus.connection import Bus
from ratchet.bus.message import named_id
from ratchet.bus.testing import eventually
from ratchet.core.contract import Feedback, Message, Trajectory
from ratchet.core.contract.snapshot import LabelRow, PairRow
from ratchet.core.datasets.parquet import arrow_schema
from ratchet.core.preferences.clickhouse_stored import Selection, StoredPreferences
from ratchet.core.preferences.clickhouse_tries import Tries
from ratchet.core.preferences.deriving import DerivationReport, Deriver
from ratchet.core.preferences.publishing import Published, publish
from ratchet.core.preferences.records import preference_of
from ratchet.core.preferences.rules.base import Rule
from ratchet.core.preferences.rules.retrieval import Retrieval
from ratchet.core.preferences.rules.reward_margin import RewardMargin
from ratchet.core.service.http import HttpServer
from ratchet.core.service.settings import SharedSettings
from ratchet.core.stores.policies import read_policy
from ratchet.core.stores.warehouse import Warehouse
from ratchet.extras.importers.base import ImportOptions
from ratchet.extras.importers.importing import import_file
from ratchet.extras.importers.reading import Records
from ratchet.extras.importers.tau_bench import TAU_BENCH
from ratchet.reward_computer.app import build as build_reward_computer
from ratchet.reward_computer.settings import Settings as RewardSettings
from ratchet.rl_coordinator.app import build as build_coordinator
from ratchet.rl_coordinator.settings import Settings as CoordinatorSettings
from ratchet.rl_coordinator.triggers.domain import THRESHOLD
from ratchet.trainer_worker.app import build as build_trainer
from ratchet.trainer_worker.settings import Settings as TrainerSettings
from ratchet.trajectory_collector.app import build as build_collector
from ratchet.trajectory_collector.settings import Settings as CollectorSettings
from tests.support.coordinator import QUICK, ROLE, Workshop, coordinating, stored
from tests.support.messages import AT
from tests.support.preferences import tried, tries
from tests.support.real_data import AIRLINE, needs_real_data
from tests.support.running import connected, prepared_objects, prepared_warehouse, running_app
from tests.support.training import changed, promote, registered


@pytest.fixture
async def bus(shared_settings: SharedSettings) -> AsyncIterator[Bus]:
    prepared_objects(shared_settings)
    async with prepared_warehouse(shared_settings), connected(shared_settings) as bus:
        yield bus


async def derive(shared: SharedSettings, bus: Bus, *roles: str, rule: Rule | None = None) -> DerivationReport:
    """Publish the pairs."""
    async with prepared_warehouse(shared) as warehouse:
        deriver = Deriver(Tries(warehouse), StoredPreferences(warehouse).known, bus, rule or RewardMargin())
        return await deriver.derive(roles or (ROLE,), lambda _done, _total: None)


async def derived(shared: SharedSettings, bus: Bus, *roles: str, rule: Rule | None = None) -> DerivationReport:
    """Publish the pairs, and wait until they are stored."""
    report = await derive(shared, bus, *roles, rule=rule)
    async with prepared_warehouse(shared) as warehouse:
        await there(warehouse, report.pairs)
    return report


async def there(warehouse: Warehouse, number: int) -> None:
    """Wait until `number` preferences are stored."""

    async def all_there() -> bool:
        counts = await StoredPreferences(warehouse).counts(Selection())
        return sum(count.number for count in counts) >= number

    await eventually(all_there)


async def snapshot_of(workshop: Workshop, **asked: Any) -> tuple[dict[str, Any], Any]:
    """Manifest and Parquet table of the job that was asked for."""
    job = await workshop.ask(**asked)
    ref = (await workshop.dispatched(job["training_job_id"])).request.training_config.dataset.snapshot
    assert ref is not None
    manifest = json.loads(workshop.objects.get(ref.uri, ref.digest))
    file = manifest["parquet"]
    return manifest, pq.read_table(io.BytesIO(workshop.objects.get(file["uri"], file["sha256"])))


async def refused(workshop: Workshop, **asked: Any) -> str:
    answer = await workshop.api.post("/v1/jobs", json={"base_model": "org/model", "role": ROLE, **asked})
    assert answer.status_code == 409, answer.text
    return answer.json()["error"]["message"]


async def test_tries_that_differ_become_pairs_and_deriving_twice_changes_nothing(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    async with stored(shared_settings, bus, tries()), prepared_warehouse(shared_settings) as warehouse:
        report = await derived(shared_settings, bus)
        assert (report.tries, report.tasks, report.comparisons, report.pairs) == (13, 6, 8, 7)
        assert dict(report.by_rater) == {"verified-outcome": 7}
        assert dict(report.skipped) == {"no_difference": 1}
        assert (report.done.published, report.done.present) == (7, 0)
        again = await derived(shared_settings, bus)
        assert (again.pairs, again.done.published, again.done.present) == (7, 0, 7)
        kept = await StoredPreferences(warehouse).newest(Selection(role=ROLE), 100)
        assert len(kept) == 7
        one = next(each.preference for each in kept if each.preference.group_key == "group-task 3")
        assert one.prompt == [{"role": "system", "content": "Help."}, {"role": "user", "content": "Where is task 3?"}]
        assert one.chosen == [{"role": "assistant", "content": "It is at 3."}]
        assert one.rejected == [{"role": "assistant", "content": "I do not know."}]
        (count,) = await StoredPreferences(warehouse).counts(Selection(source="derived"))
        assert (count.role, count.rater, count.number) == (ROLE, "verified-outcome", 7)
        assert not await StoredPreferences(warehouse).newest(Selection(source="human"), 100)


async def test_tries_with_and_without_retrieval_are_compared_by_their_labels(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    def labelled(name: str, total: float, rag: object) -> list[Message]:
        run, scored = tried(name, f"{name}.", total, task="one", number=0)
        return [changed(run, labels={"rag": rag}), scored]

    facts = labelled("with retrieval", 0.9, True) + labelled("without", 0.1, "false") + labelled("unknown", 0.1, "?")
    async with stored(shared_settings, bus, facts), prepared_warehouse(shared_settings) as warehouse:
        report = await derived(shared_settings, bus, rule=Retrieval())
        assert dict(report.by_rater) == {"rag-verified-outcome": 1}
        assert dict(report.skipped) == {"no_rag_label": 2}
        (kept,) = await StoredPreferences(warehouse).newest(Selection(source="rag"), 10)
        assert kept.preference.chosen == [{"role": "assistant", "content": "with retrieval."}]


async def test_a_snapshot_of_pairs_holds_one_roles_pairs_and_names_their_sources(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    spoken = {"prompt": "Where?", "chosen": "Here.", "rejected": "There."}
    human = preference_of({**spoken, "metadata": {"rater": "reviewer-7"}}, ROLE)
    async with stored(shared_settings, bus, tries() + tries("sales")), prepared_warehouse(shared_settings) as warehouse:
        await derived(shared_settings, bus, ROLE, "sales")
        await publish(bus, StoredPreferences(warehouse).known, [human], Published())
        await there(warehouse, 15)
        async with coordinating(shared_settings, bus, slots={"default": 5}) as workshop:
            manifest, table = await snapshot_of(workshop, algorithm="dpo")
            assert table.schema.equals(arrow_schema(PairRow))
            rows = table.to_pylist()
            assert (manifest["format"], manifest["role"], manifest["rows"], len(rows)) == ("pairs", ROLE, 8, 8)
            assert manifest["preferences"] == [row["preference_id"] for row in rows]
            assert set(manifest["trajectories"]) == {
                fact.trajectory_id for fact in tries() if isinstance(fact, Trajectory)
            }
            assert manifest["raters"] == {"verified-outcome": 7, "reviewer-7": 1}
            assert manifest["sources"] == {"derived": 7, "human": 1}
            assert rows[-1]["preference_id"] == human.preference_id
            assert json.loads(rows[-1]["prompt"]) == [{"role": "user", "content": "Where?"}]
            assert json.loads(rows[0]["chosen"])[0]["role"] == "assistant"
            assert (rows[0]["group_key"] or "").startswith("group-")
            assert manifest["filters"] == {}


@pytest.mark.slow
async def test_too_few_pairs_and_pairs_that_lineage_has_learned_from_are_refused(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    async with stored(shared_settings, bus, tries()):
        await derived(shared_settings, bus)
        async with coordinating(shared_settings, bus, minimum_rows=8, slots={"default": 5}) as workshop:
            body = {"algorithm": "dpo", "base_model": "org/model", "role": ROLE}
            answer = await workshop.api.post("/v1/jobs", json=body)
            assert (answer.status_code, answer.json()["error"]["message"]) == (
                409,
                "7 of 7 preferences of role support can be used by dpo, which needs at least 8",
            )
        async with coordinating(shared_settings, bus, minimum_rows=3, slots={"default": 5}) as workshop:
            reason = await refused(workshop, algorithm="dpo", dataset={"filter": {"sources": ["human"]}})
            assert reason.endswith("can be used by dpo, which needs at least 3: source 7")
            job = await workshop.ask(algorithm="dpo")
            learned = (await workshop.dispatched(job["training_job_id"])).request.training_config.dataset.snapshot
            assert learned is not None
            await promote(bus, registered(1, stage="stable", dataset_digest=learned.digest))
            reason = await refused(workshop, algorithm="dpo")
            assert reason.endswith("consumed_by_lineage 7")


async def test_thumbs_become_labels_with_the_trajectories_that_they_judge(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    def thumb(name: str, value: bool, role: str = ROLE) -> Feedback:
        return Feedback(
            feedback_id=named_id("thumb", role, name, value),
            trajectory_id=named_id(role, name),
            kind="thumbs",
            at=AT,
            role=role,
            value=value,
            rater="someone",
        )

    thumbs = [thumb("good 0", True), thumb("good 1", True), thumb("bad 0", False), thumb("good 2", True, "sales")]
    async with (
        stored(shared_settings, bus, [*tries(), *thumbs]),
        coordinating(shared_settings, bus, minimum_rows=3, slots={"default": 5}) as workshop,
    ):
        manifest, table = await snapshot_of(workshop, algorithm="kto")
        assert table.schema.equals(arrow_schema(LabelRow))
        assert (manifest["format"], manifest["sources"]) == ("labels", {"thumbs": 3})
        rows = {row["trajectory_id"]: row for row in table.to_pylist()}
        assert set(rows) == set(manifest["trajectories"])
        bad = rows[named_id(ROLE, "bad 0")]
        assert (bad["label"], bad["source"]) == (False, "thumbs")
        assert json.loads(bad["completion"]) == [{"role": "assistant", "content": "I do not know."}]
        assert rows[named_id(ROLE, "good 1")]["label"] is True
        reason = await refused(workshop, algorithm="kto", dataset={"filter": {"min_reward": 0.5}})
        assert reason == "role support cannot be trained by kto: all 2 thumbs are up: there is nothing to tell apart"


async def test_thumbs_of_one_kind_only_are_refused_when_they_are_asked_for(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    thumbs = [
        Feedback(
            feedback_id=named_id("thumb", name),
            trajectory_id=named_id(ROLE, name),
            kind="thumbs",
            at=AT,
            role=ROLE,
            value=True,
        )
        for name in ("good 0", "good 1")
    ]
    async with stored(shared_settings, bus, [*tries(), *thumbs]), coordinating(shared_settings, bus) as workshop:
        body = {"algorithm": "kto", "base_model": "org/model", "role": ROLE}
        answer = await workshop.api.post("/v1/jobs", json=body)
        reason = f"role {ROLE} cannot be trained by kto: all 2 thumbs are up: there is nothing to tell apart"
        assert (answer.status_code, answer.json()["error"]["message"]) == (409, reason)


async def test_enough_preferences_start_a_training_once_they_are_stored(
    shared_settings: SharedSettings, bus: Bus
) -> None:
    recipe = {
        "config": {
            "algorithm": "dpo",
            "base_model": "org/model",
            "dataset": {"source": "clickhouse", "sample_size": 100},
            "hyperparameters": {},
        },
        "threshold": 7,
    }
    async with stored(shared_settings, bus, tries()):
        """The collector stores the tries, and stops."""
    settings = {"preference_recipes": {ROLE: recipe}, "minimum_rows": 3}
    async with coordinating(shared_settings, bus, **settings) as workshop:

        async def counted() -> bool:
            roles = (await workshop.api.get("/v1/status/dpo")).json()["roles"]
            return ROLE in roles and roles[ROLE]["since_last_dpo"] == 7

        async def started() -> list[dict[str, Any]]:
            return (await workshop.api.get("/v1/jobs")).json()["jobs"]

        await derive(shared_settings, bus)
        await eventually(counted)
        assert await started() == []  # no collector has stored them yet
        async with running_app(build_collector(CollectorSettings(shared=shared_settings))):
            (job,) = await eventually(started)
            assert (job["algorithm"], job["role"]) == ("dpo", ROLE)
            assert job["request"]["trigger_reason"] == THRESHOLD
            await workshop.dispatched(job["training_job_id"])


def records(folder: Path) -> Path:
    """Tries in tau-bench's format: of each task a success and a failure, asked in the same words."""
    made: list[Any] = []
    for number in range(20):
        task, success = divmod(number, 2)
        answer = f"Booking {task} is on time." if success else "I cannot help with that."
        made.append(
            {
                "task_id": task,
                "trial": success,
                "reward": float(success),
                "info": {},
                "traj": [
                    {"role": "system", "content": "# Airline Agent Policy\nHelp."},
                    {"role": "user", "content": f"where is booking {task}?"},
                    {"role": "assistant", "content": answer},
                ],
            }
        )
    file = folder / "results.json"
    file.write_text(json.dumps(made))
    return file


async def ended(api: httpx.AsyncClient, job_id: str) -> dict[str, Any] | None:
    job = (await api.get(f"/v1/jobs/{job_id}")).json()
    return job if job["state"] in {"completed", "failed"} else None


async def rewarded(warehouse: Warehouse, number: int) -> None:
    async def all_rewarded() -> bool:
        counts = await warehouse.rows("SELECT uniqExact(trajectory_id) AS n FROM rewards")
        return counts[0]["n"] >= number

    await eventually(all_rewarded)


@asynccontextmanager
async def imported(shared: SharedSettings, file: Path) -> AsyncIterator[Bus]:
    """The records of a file as stored trajectories, each with its reward."""
    async with (
        prepared_warehouse(shared) as warehouse,
        connected(shared) as bus,
        running_app(build_collector(CollectorSettings(shared=shared, linger_s=0.02))),
        running_app(build_reward_computer(RewardSettings(shared=shared))),
    ):
        report = await import_file(TAU_BENCH, bus, file, ImportOptions(role=ROLE))
        await rewarded(warehouse, report.published)
        yield bus


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_pairs_of_imported_tries_train_an_adapter(shared_settings: SharedSettings, tmp_path: Path) -> None:
    from tests.support.tiny_models import chat_texts, publish_tiny_model, write_tiny_model  # noqa: PLC0415 - torch
    from tests.support.trainer_world import FAST  # noqa: PLC0415 - torch

    file, objects = records(tmp_path), prepared_objects(shared_settings)
    chats: Sequence[Any] = [read.value["traj"] for read in Records(file) if isinstance(read.value, dict)]
    directory = await asyncio.to_thread(write_tiny_model, tmp_path / "base", list(chat_texts(chats)), vocabulary=300)
    base = await asyncio.to_thread(publish_tiny_model, objects, directory, ROLE, AT)
    async with (
        imported(shared_settings, file) as bus,
        running_app(build_coordinator(CoordinatorSettings(shared=shared_settings, port=0), QUICK)) as app,
        running_app(build_trainer(TrainerSettings(shared=shared_settings), FAST)),
    ):
        assert (await derived(shared_settings, bus)).pairs == 10
        server = next(part for part in app.components if isinstance(part, HttpServer))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=30) as api:
            chosen = {"learning_rate": 0.01, "batch_size": 4, "max_steps": 6, "seed": 1, "max_length": 128}
            asked = {"algorithm": "dpo", "role": ROLE, "base_model": base.uri, "hyperparameters": chosen}
            asked |= {"dataset": {"min_rows": 10, "filter": {"min_human_share": 0}}}
            answer = await api.post("/v1/jobs", json=asked)
            assert answer.status_code == 201, answer.text
            job = await eventually(lambda: ended(api, answer.json()["training_job_id"]), deadline_s=200)
        assert (job["state"], job["error"], job["trajectories"]) == ("completed", None, 10)
        artifacts = job["artifacts"]
        policy = await asyncio.to_thread(read_policy, objects, artifacts["final_checkpoint"], artifacts["digest"])
        assert policy.manifest.kind == "adapter"


@needs_real_data
async def test_thirty_real_tasks_tried_four_times_give_46_pairs(shared_settings: SharedSettings) -> None:
    async with imported(shared_settings, AIRLINE) as bus:
        report = await derived(shared_settings, bus)
        assert (report.tries, report.tasks, report.comparisons) == (120, 30, 180)
        assert dict(report.by_rater) == {"verified-outcome": 46}
        assert sorted(report.by_task.values()) == [3] * 10 + [4] * 4
        assert (report.done.published, report.done.refused) == (46, [])

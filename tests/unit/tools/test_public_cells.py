"""A cell on public tasks, with a tiny random model: what is there is not made again, and counts are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from ratchet.core.contract.training import Lora
from ratchet.local.demo.plan import Reinforced, Supervised
from ratchet_helpdesk.heldout import GREEDY, SAMPLED
from tests.support.tiny_models import write_tiny_model
from tools.learning.cells import RLOO, Cell, Experiment, Measured, Variant
from tools.learning.measure import Lessons, digest_of, world_of
from tools.learning.workshop import EXAM, FIGURES, NUMBER_FORMAT, Policy, TakenExam, Workshop
from tools.learning.worlds.base import Engine, Outcome, Task
from tools.learning.worlds.public import PublicTasks
from tools.learning.worlds.single_answers import SingleAnswer, shown_text

WORDS = ["red", "blue", "green", "grey", "white", "black"]
FEW = Experiment(
    name="bfcl",  # a public one
    world="bfcl",
    title="Colours",
    asks="",
    variants=(Variant(name=RLOO, tries=4), Variant(name="solved", algorithm="sft", solved_only=True, tries=4)),
    cycles=1,
    trajectories=16,
)


def short(content: str, calls: Sequence[tuple[str, str]]) -> Outcome:
    """Some answers of a random model are short."""
    return Outcome(len(content) % 2 == 0, len(calls))


def colours(model: Path) -> PublicTasks:
    tasks = [SingleAnswer(word, "colour", [{"role": "user", "content": word}], [], short) for word in WORDS]
    return PublicTasks(
        seed=0,
        tasks=tasks[:4],
        exam=tasks[4:],
        shown=[shown_text(task, task.task_id) for task in tasks[:4]],
        engine=Engine(max_tokens=6, seats=3, prefix_tokens=400, together=2, dtype="float32"),
        imitation=Supervised(examples=4, steps=1, learning_rate=1e-3, batch=2),
        cycle=Reinforced(sample_size=16, learning_rate=1e-3, epochs=1, batch=8),
        lora=Lora(r=2, alpha=4),
        model=lambda: model,
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", WORDS)


def measured(world: PublicTasks, root: Path, variant: str) -> tuple[list[Measured], Measured | None]:
    lessons = Lessons(FEW, variant, Workshop(world, root / "seed-0"))
    exams, refused = lessons.measured()
    assert refused is None
    return exams, lessons.base()


def test_a_cell_that_was_stopped_goes_on_with_what_is_there(model: Path, tmp_path: Path) -> None:
    world = colours(model)
    exams, base = measured(world, tmp_path, RLOO)
    broken = replace(world, model=lambda: model, tasks=[], shown=[], exam=[])
    assert measured(broken, tmp_path, RLOO) == (exams, base)


def test_what_cell_took_is_of_all_its_runs_and_not_of_what_its_seed_shares(model: Path, tmp_path: Path) -> None:
    workshop = Workshop(colours(model), tmp_path / "seed-0")
    Lessons(FEW, RLOO, workshop).measured()
    learnt = Policy(model, tmp_path / "seed-0" / f"{FEW.name} {RLOO} 1")
    took = TakenExam(list(workshop.exam(learnt).answers), seconds=1000.0, processor_s=500.0)
    (learnt.folder / EXAM).write_bytes(msgspec.json.encode(took))
    took_s = {"play_s": 100.0, "train_s": 10.0, "processor_s": 20.0}
    (learnt.folder / FIGURES).write_bytes(msgspec.json.encode({**learnt.figures(), **took_s}))
    resumed = Lessons(FEW, RLOO, workshop)
    resumed.base()
    resumed.measured()
    assert (resumed.seconds, resumed.processor_s) == (1110, 520)


def test_what_another_recipe_made_is_not_taken_for_this_ones(model: Path) -> None:
    world = colours(model)
    others = [
        world.computed_in("bfloat16"),
        replace(world, engine=replace(world.engine, dtype="bfloat16")),
        replace(world, imitation=replace(world.imitation, steps=2)),
    ]
    assert len({digest_of(recipe) for recipe in (world, *others)}) == 4
    assert digest_of(replace(world, seed=1)) == digest_of(world)


def test_a_cell_measures_its_number_format_once_for_its_folder(tmp_path: Path) -> None:
    cell = Cell("typed_json", RLOO, 0)
    measured, again = (world_of(cell, tmp_path / "work") for _ in range(2))
    assert measured.precision in {"bf16", "fp32"}
    assert (again.precision, again.recipe()) == (measured.precision, measured.recipe())
    assert (tmp_path / "work" / NUMBER_FORMAT).read_text() == measured.engine.dtype


@pytest.mark.parametrize(("dtype", "precision", "bits"), [("float32", "fp32", 32), ("bfloat16", "bf16", 16)])
def test_a_cell_keeps_the_number_format_of_its_folder(tmp_path: Path, dtype: str, precision: str, bits: int) -> None:
    (tmp_path / NUMBER_FORMAT).write_text(dtype)
    world = world_of(Cell("typed_json", RLOO, 0), tmp_path)
    assert (world.engine.dtype, world.precision, world.recipe()["bits of a number"]) == (dtype, precision, bits)


def test_variants_share_the_first_policy_and_the_models_own_exam(model: Path, tmp_path: Path) -> None:
    exams, base = measured(colours(model), tmp_path, RLOO)
    others, same = measured(replace(colours(model), shown=[]), tmp_path, "solved")
    assert (others[0], same) == (exams[0], base)


def test_an_exam_has_every_task_in_both_modes_and_a_cycle_its_counts(model: Path, tmp_path: Path) -> None:
    exams, base = measured(colours(model), tmp_path, "solved")
    assert base is not None
    for exam in (*exams, base):
        assert {mode: len(each) for mode, each in exam.solved.items()} == {GREEDY: 2, SAMPLED: 2}
        assert exam.success(GREEDY).successes == exam.solved[GREEDY].count("1")
    figures = exams[1].figures
    assert figures["played"] == 16
    assert 0 < figures["sampled_tokens"] <= 16 * 6
    assert figures["samples"] == round(16 * figures["played_success"])
    assert figures["step_tokens"] > figures["trained_tokens"]


def test_training_tasks_come_once_before_any_comes_again(model: Path) -> None:
    world = colours(model)
    drawn: list[Task] = world.training(10, 3)
    assert [len({task.task_id for task in drawn[part : part + 4]}) for part in (0, 4)] == [4, 4]
    assert [task.task_id for task in drawn] == [task.task_id for task in world.training(10, 3)]


def test_shortest_tasks_are_played_in_the_first_cycle(model: Path, tmp_path: Path) -> None:
    asked: list[str] = []
    few = replace(FEW, cycles=2, trajectories=2, variants=(Variant(name="by length", tries=1, shortest_first=True),))

    def noted(word: str) -> SingleAnswer:
        def judge(content: str, calls: Sequence[tuple[str, str]]) -> Outcome:
            asked.append(word)
            return Outcome(len(asked) % 2 == 0)

        return SingleAnswer(word, "colour", [{"role": "user", "content": word}], [], judge)

    world = replace(colours(model), tasks=[noted(word) for word in ("green", "red", "white", "blue")])
    Lessons(few, "by length", Workshop(world, tmp_path / "seed-0")).measured()
    assert [sorted(asked[:2]), sorted(asked[2:])] == [["blue", "red"], ["green", "white"]]


def test_right_answers_are_imitated_without_a_try(model: Path, tmp_path: Path) -> None:
    few = replace(FEW, variants=(Variant(name="shown", algorithm="sft", shown=True),), trajectories=3)
    exams, _ = Lessons(few, "shown", Workshop(colours(model), tmp_path / "seed-0")).measured()
    assert exams[1].figures["samples"] == 3
    assert "played" not in exams[1].figures


def test_between_exams_a_cycle_has_its_figures_alone(model: Path, tmp_path: Path) -> None:
    few = replace(FEW, cycles=2, examined=2)
    exams, _ = Lessons(few, RLOO, Workshop(colours(model), tmp_path / "seed-0")).measured()
    assert [exam.examined for exam in exams] == [True, False, True]
    assert exams[1].figures["played"] == 16

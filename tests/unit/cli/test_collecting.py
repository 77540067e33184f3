"""Collecting executions: the spend cap, going on after an interrupt, and templates."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from ratchet.cli.collecting import (
    AT_ONCE,
    BEGUN,
    KEPT_S,
    Collected,
    Collection,
    Run,
    Service,
    Template,
    collect,
    read_collected,
    read_templates,
)
from ratchet.core.contract.http.workflows import WorkflowIn, WorkflowOut
from ratchet.core.errors import NotFound, Rejected, Unavailable
from tests.support.fake_workflows import workflow

TEMPLATES = [Template("sum up {topic}", {"topic": ("bees", "tides")}), Template("translate {text}", {"text": ("a",)})]


def run(count: int = 10, budget_usd: float = 10.0, each_usd: float = 1.0) -> Run:
    return Run("run", count, "planner", budget_usd, each_usd, TEMPLATES)


class World:
    """A service whose workflows cost `cost_usd` each, and its clock."""

    def __init__(self, cost_usd: float = 0.5) -> None:
        self.cost_usd = cost_usd
        self.started: dict[str, WorkflowOut] = {}
        self.most_at_once = 0
        self.worst_usd = 0.0
        self.now = 0.0
        self.is_away = False
        self.away_until = 0.0
        self.interrupt_after: int | None = None
        self.kept: list[Collected] = []

    def new_id(self) -> str:
        return str(UUID(int=(int(self.now * 1000) << 80) + len(self.kept)))

    def start(self, asked: WorkflowIn) -> WorkflowOut:
        self._require()
        assert [one.workflow_id for one in self.kept].count(asked.workflow_id or "") == 1, "sent before it was kept"
        return self.started.setdefault(asked.workflow_id or "", workflow(asked, "running"))

    def read(self, name: str) -> WorkflowOut:
        self._require()
        if name not in self.started:
            raise NotFound(f"there is no workflow {name}")
        return self.started[name]

    def sleep(self, seconds: float) -> None:
        """The oldest workflow ends."""
        self.now += seconds
        running = [one for one in self.started.values() if one.state == "running"]
        self.most_at_once = max(self.most_at_once, len(running))
        spent = sum(one.cost_usd for one in self.started.values())
        self.worst_usd = max(self.worst_usd, spent + sum(one.budget_usd for one in running))
        if self.interrupt_after is not None and len(self.ended) >= self.interrupt_after:
            raise KeyboardInterrupt
        if running:
            one = running[0]
            self.started[one.workflow_id] = replace(one, state="succeeded", cost_usd=self.cost_usd)

    def _require(self) -> None:
        if self.is_away or self.now < self.away_until:
            raise Unavailable("the workflows service does not answer")

    @property
    def ended(self) -> list[Collected]:
        return [one for one in self.kept if one.state != BEGUN]

    def collected(self, collection: Collection) -> Collection:
        service = Service(self.start, self.read, self.new_id, lambda: self.now, self.sleep, lambda: self.now)
        collect(collection, service, self.kept.append, lambda _: None)
        return collection


def kept_in(path: Path, lines: list[Collected]) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return path


def test_a_run_ends_with_every_workflow_and_few_at_once() -> None:
    world = World()
    collection = world.collected(Collection(run()))
    assert sorted(collection.ended) == list(range(10))
    assert world.most_at_once == AT_ONCE
    assert collection.spent_usd == pytest.approx(5.0)


@pytest.mark.parametrize(("cost_usd", "count"), [(0.0, 20), (0.3, 9), (1.0, 3)])
def test_no_workflow_starts_that_could_exceed_the_cap(cost_usd: float, count: int) -> None:
    world = World(cost_usd)
    world.collected(Collection(run(count=20, budget_usd=3.5)))
    assert world.worst_usd <= 3.5 + 1e-9
    assert len(world.ended) == count


def test_a_run_that_was_interrupted_goes_on_without_repeating(tmp_path: Path) -> None:
    world = World()
    world.interrupt_after = 4
    with pytest.raises(KeyboardInterrupt):
        world.collected(Collection(run()))
    path = kept_in(tmp_path / "run.jsonl", world.kept)
    world.interrupt_after = None
    again = world.collected(read_collected(path, run()))
    assert len(again.ended) == len(world.started) == 10
    assert sorted(one.number for one in world.ended) == list(range(10))
    assert again.spent_usd == pytest.approx(5.0)


def test_what_the_service_has_forgotten_is_not_run_again_and_named(tmp_path: Path) -> None:
    world = World()
    world.interrupt_after = 4
    with pytest.raises(KeyboardInterrupt):
        world.collected(Collection(run()))
    path = kept_in(tmp_path / "run.jsonl", world.kept)
    left = read_collected(path, run())
    waiting = {name for number, name in left.begun.items() if number not in left.ended}
    world.interrupt_after = None
    world.started.clear()
    world.now += KEPT_S + 10
    again = world.collected(left)
    assert {*again.lost} == waiting != set()
    assert all(name in again.note for name in waiting)
    assert waiting.isdisjoint(world.started)
    assert len(again.ended) == 10
    assert again.spent_usd == pytest.approx(0.5 * (10 - len(waiting)) + 1.0 * len(waiting))
    assert sorted(read_collected(kept_in(path, world.kept), run()).lost) == sorted(waiting)


def test_what_was_spent_before_an_interrupt_counts_to_the_cap() -> None:
    world = World(cost_usd=1.0)
    ended = {n: Collected(number=n, workflow_id=str(n), state="failed", cost_usd=1.0, instruction="") for n in range(3)}
    assert len(world.collected(Collection(run(budget_usd=4.0), ended)).ended) == 4


def test_a_service_that_stays_away_ends_the_run_with_its_error() -> None:
    world = World()
    world.is_away = True
    with pytest.raises(Unavailable):
        world.collected(Collection(run()))
    assert world.now > 60


def test_a_service_that_is_away_for_a_while_interrupts_nothing() -> None:
    world = World()
    world.away_until = 30.0
    assert len(world.collected(Collection(run())).ended) == 10


def test_the_same_number_is_always_the_same_instruction() -> None:
    assert run().workflow(7, "id") == run().workflow(7, "id")
    assert {run().workflow(n).instruction for n in range(50)} == {"sum up bees", "sum up tides", "translate a"}


def test_a_line_that_a_crash_cut_off_was_not_sent(tmp_path: Path) -> None:
    begun = Collected(number=0, workflow_id="a", state=BEGUN, cost_usd=0.0, instruction="x")
    path = kept_in(tmp_path / "run.jsonl", [begun, replace(begun, state="failed", cost_usd=0.1), begun])
    path.write_bytes(path.read_bytes() + b'{"number":1,"workf')
    read = read_collected(path, run())
    assert (read.next_number, read.spent_usd) == (1, 0.1)
    assert read_collected(tmp_path / "none", run()) == Collection(run())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no template"),
        ('{"instruction": "sum up {x}"}', "line 1 of .*: x has no values"),
        ('{"instruction": "a", "inputs": {"t": "{y}"}}', "y has no values"),
        ('{"instruction": "a", "values": {"x": ["b"]}}', "nothing uses the values of x"),
        ('{"instruction": "a", "value": {}}', "line 1 of .* is not a template"),
    ],
)
def test_a_template_that_cannot_be_filled_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(Rejected, match=words):
        read_templates(tmp_path / "t.jsonl")


def test_other_templates_are_another_run(tmp_path: Path) -> None:
    for name, text in (("t", '{"instruction": "a"}'), ("u", '{"instruction": "b"}')):
        (tmp_path / f"{name}.jsonl").write_text(text)
    names = {read_templates(tmp_path / f"{name}.jsonl")[1] for name in ("t", "u")}
    assert len(names) == 2
    with pytest.raises(NotFound):
        read_templates(tmp_path / "none.jsonl")

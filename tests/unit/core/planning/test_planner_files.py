"""A planner's file: what is written is read, and everything that is broken is refused in words."""

import struct
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from ratchet.core.contract.workflows import TASK_TYPES, Plan, SubTask, Worker
from ratchet.core.errors import Rejected
from ratchet.core.planning.base import FLOOR, Choice
from ratchet.core.planning.encoder import encode
from ratchet.core.planning.files import Description, PlannerFile, load_planner, read_file, save_planner
from ratchet.core.planning.network import PlanHead, fresh_weights
from ratchet.core.planning.plans import check_plan, depths
from ratchet.core.planning.selectors import table_shapes


def network_file(seed: int = 0, scale: float = 1.0) -> PlannerFile:
    weights = {name: weight * np.float32(scale) for name, weight in fresh_weights(len(TASK_TYPES), seed).items()}
    return PlannerFile(Description(selector="network", trained_on=("ab",)), weights)


def table_file(kind: str) -> PlannerFile:
    tables = {name: np.ones(shape) for name, shape in table_shapes(kind, len(TASK_TYPES), 2).items()}
    if kind == "linucb":
        tables["linucb.precision"] += np.eye(2)
    return PlannerFile(Description(selector=kind, workers=("a", "b")), tables)


def choice_among(*names: str) -> Choice:
    workers = [
        Worker(name=name, model_type="llm", capabilities=TASK_TYPES, model=name, cost_per_token=0.0) for name in names
    ]
    plan = Plan(sub_tasks=(SubTask(task_type="code", instruction="Write."),), made_by="llm")
    return Choice("Write it.", plan, 0, workers, [None] * len(workers))


def test_a_file_is_the_same_for_the_same_content() -> None:
    assert save_planner(network_file()) == save_planner(network_file())


def test_a_file_is_one_that_safetensors_reads() -> None:
    tensors = pytest.importorskip("safetensors.numpy").load(save_planner(network_file()))
    assert np.array_equal(tensors["plan.text"], network_file().tensors["plan.text"])


def test_a_loaded_planner_knows_what_it_was_trained_on() -> None:
    assert load_planner(save_planner(network_file())).trained_on == {"ab"}


@pytest.mark.parametrize("kind", ["linucb", "thompson"])
def test_a_selector_without_a_head_plans_one_sub_task(kind: str) -> None:
    planner = load_planner(save_planner(table_file(kind)))
    assert len(planner.plan("Anything.").sub_tasks) == 1


@pytest.mark.parametrize("file", [network_file(3, 20.0), table_file("linucb"), table_file("thompson")])
@given(names=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True))
def test_every_selector_keeps_the_floor(file: PlannerFile, names: list[str]) -> None:
    chances = load_planner(save_planner(file)).propensities(choice_among(*names))
    assert sum(chances) == pytest.approx(1.0, abs=1e-6)
    assert min(chances) >= FLOOR - 1e-9


def test_thompson_draws_the_same_for_the_same_choice() -> None:
    planner = load_planner(save_planner(table_file("thompson")))
    assert planner.propensities(choice_among("a", "b", "c")) == planner.propensities(choice_among("a", "b", "c"))


HEADS = [
    PlanHead(network_file(seed, scale).tensors, TASK_TYPES) for seed in range(3) for scale in (0.0, 1.0, 5.0, 100.0)
]


@given(head=st.sampled_from(HEADS), instruction=st.text(max_size=200))
def test_every_plan_of_any_weights_is_a_dag(head: PlanHead, instruction: str) -> None:
    plan = head.plan(instruction or "Do it.")
    if instruction.strip():
        check_plan(plan)
    assert all(other < index for index, task in enumerate(plan.sub_tasks) for other in task.depends_on)
    assert 0 <= plan.confidence <= 1


def test_a_plan_is_no_deeper_and_no_longer_than_may_run() -> None:
    file = network_file()
    file.tensors["plan.stop"][:] = 0.0
    file.tensors["plan.stop_bias"][:] = -9.0
    file.tensors["plan.distance"][:] = 100.0
    plan = load_planner(save_planner(file)).plan("Do everything, in a row.")
    assert len(plan.sub_tasks) == 20
    assert max(depths(plan.sub_tasks)) == 10


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_weights_that_load_overflow_nowhere(sign: float) -> None:
    tensors = {name: np.full_like(tensor, sign * 1e6) for name, tensor in network_file().tensors.items()}
    planner = load_planner(save_planner(PlannerFile(network_file().description, tensors)))
    assert sum(planner.propensities(choice_among("a", "b"))) == pytest.approx(1.0)
    check_plan(planner.plan("Anything."))


def test_an_instruction_of_a_megabyte_is_planned() -> None:
    check_plan(load_planner(save_planner(network_file())).plan("word " * 200_000))


def test_texts_are_encoded_the_same_everywhere() -> None:
    vector = encode("Report it")
    places = [18, 91, 144, 150, 279, 330, 350, 390, 424, 498, 504]
    assert np.flatnonzero(vector).tolist() == places
    assert np.abs(vector[places]) == pytest.approx(0.3015, abs=1e-4)
    assert not encode("").any()


def raw(file: PlannerFile, change: Callable[[dict[str, object]], None]) -> bytes:
    """The bytes of a file whose header was changed."""
    blob = save_planner(file)
    length = struct.unpack("<Q", blob[:8])[0]
    header = msgspec.json.decode(blob[8 : 8 + length])
    change(header)
    encoded = msgspec.json.encode(header)
    return struct.pack("<Q", len(encoded)) + encoded + blob[8 + length :]


def described(**members: object) -> Callable[[dict[str, object]], None]:
    def change(header: dict[str, object]) -> None:
        description = {"selector": "network"} | members
        header["__metadata__"] = {"planner": msgspec.json.encode(description).decode()}

    return change


@pytest.mark.parametrize(
    ("blob", "words"),
    [
        (b"", "truncated or not a safetensors file"),
        (b"PK\x03\x04 no planner at all", "truncated or not a safetensors file"),
        (save_planner(network_file())[:-5], "truncated"),
        (save_planner(network_file())[:100], "truncated"),
        (struct.pack("<Q", 4) + b"nope", "cannot be read"),
        (raw(network_file(), described(selector="magic")), "unknown selector 'magic'"),
        (raw(network_file(), described(format=2)), "format 2"),
        (raw(network_file(), described(task_types=["code", "cooking"])), "task types"),
        (raw(network_file(), described(task_types=["code", "code"])), "task types"),
        (raw(network_file(), described(task_types=["code"])), "has the shape"),
        (raw(network_file(), described(selector="linucb")), "names no workers"),
        (raw(network_file(), lambda header: header.pop("__metadata__")), "cannot be read"),
        (raw(network_file(), lambda header: header.pop("plan.type")), "lacks plan.type"),
        (raw(network_file(), lambda header: header.update(more=header["plan.type"])), "unknown tensor more"),
        (
            raw(
                network_file(),
                lambda header: header.update({"plan.type": {"dtype": "I8", "shape": [1], "data_offsets": [0, 1]}}),
            ),
            "as I8",
        ),
        (
            raw(
                network_file(),
                lambda header: header.update({"plan.type": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}}),
            ),
            "not where its shape puts it",
        ),
    ],
)
def test_a_broken_file_is_refused_in_words(blob: bytes, words: str) -> None:
    with pytest.raises(Rejected) as refused:
        read_file(blob)
    assert words in str(refused.value)


@pytest.mark.parametrize(("kind", "name"), [("linucb", "linucb.precision"), ("thompson", "thompson.counts")])
def test_tables_that_no_training_made_are_refused(kind: str, name: str) -> None:
    file = table_file(kind)
    file.tensors[name][0, 0] = -1.0
    with pytest.raises(Rejected, match=name):
        save_planner(file)


@pytest.mark.parametrize("number", [np.nan, np.inf, -1e30])
def test_numbers_that_are_not_finite_are_refused(number: float) -> None:
    file = network_file()
    file.tensors["plan.type"][0, 0] = number
    with pytest.raises(Rejected, match="not finite"):
        save_planner(file)


@given(st.integers(0, 2**32), st.integers(0, 255))
def test_a_file_with_a_changed_byte_is_read_or_refused(place: int, value: int) -> None:
    blob = bytearray(save_planner(table_file("thompson")))
    blob[place % len(blob)] = value
    try:
        planner = load_planner(bytes(blob))
    except Rejected:
        return
    chances = planner.propensities(choice_among("a", "b"))
    assert sum(chances) == pytest.approx(1.0)
    assert min(chances) > 0

"""Policies play the whole help desk in one process, through the engine's own batch and text."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.core.datasets.domain.sequences import unpacked
from ratchet.local.engine_local.torch_policies import Served
from ratchet_helpdesk.base_model import Shape, write_base_model
from ratchet_helpdesk.heldout import GREEDY, SAMPLED
from ratchet_helpdesk.world import MAX_CALLS, Verdict
from tools.learning.offline import PlayedByPolicy, Sampler, serve_folder, take_exam
from tools.learning.worlds import open_world

WORLD = open_world("helpdesk", 0)
TINY = Shape(hidden=8, layers=1, heads=2, feed_forward=16)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder: Path = tmp_path_factory.mktemp("random")
    write_base_model(folder, 0, TINY)
    return serve_folder(folder, None)


def play(served: Served, seed: int, count: int, tries: int = 1) -> list[PlayedByPolicy]:
    return Sampler(served, WORLD.engine, seed).play(WORLD.training(count, 0) * tries, 1.0)


def test_every_ticket_is_played_to_its_end_and_every_call_is_kept(served: Served) -> None:
    count = WORLD.engine.seats + 9
    played = play(served, 0, count)
    assert {one.task.task_id for one in played} == {task.task_id for task in WORLD.training(count, 0)}
    for one in played:
        assert isinstance(one.verdict, Verdict)
        assert 1 <= one.verdict.model_calls == len(one.calls) <= MAX_CALLS
        assert [message["role"] for message in one.messages[:2]] == ["system", "user"]
        assert all(len(call.output_token_ids) == len(call.behavior_logprobs) for call in one.calls)


def test_a_seed_plays_the_same_trajectories_again(served: Served) -> None:
    first, again, other = ([one.logged() for one in play(served, seed, 4, tries=2)] for seed in (1, 1, 2))
    assert first == again  # ids too: the order in which trajectories are learnt goes by them
    assert first != other
    assert len({one.trajectory_id for one in first}) == len(first)


def test_what_was_played_is_a_row_of_a_snapshot(served: Served) -> None:
    (played,) = play(served, 0, 1)
    logged = played.logged()
    assert (logged.task_key, logged.reward) == (played.task.task_id, float(played.verdict.success))
    assert (logged.calls, [span.trainable for span in logged.spans]) == ([], [True] * len(played.calls))
    tokens = [(call.prompt_token_ids, call.output_token_ids) for call in unpacked(logged).calls]
    assert tokens == [(call.prompt_token_ids, call.output_token_ids) for call in played.calls]


def test_an_exam_plays_every_ticket_in_both_modes(served: Served) -> None:
    exam = take_exam(served, WORLD.engine, WORLD.held_out()[:6], 0)
    assert {mode: exam.success(mode).trials for mode in (GREEDY, SAMPLED)} == {GREEDY: 6, SAMPLED: 6}  # pyright: ignore[reportOptionalMemberAccess] - it is there

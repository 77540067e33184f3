"""Policies play the whole help desk in one process, through the engine's own batch and text."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.engine_local.torch_policies import Served
from ratchet_helpdesk.base_model import Shape, write_base_model
from ratchet_helpdesk.heldout import GREEDY, SAMPLED
from ratchet_helpdesk.world import MAX_CALLS, TRAIN, draw_tasks
from tools.learning.offline import SEATS, Sampler, serve_folder, take_exam

TINY = Shape(hidden=8, layers=1, heads=2, feed_forward=16)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder: Path = tmp_path_factory.mktemp("random")
    write_base_model(folder, 0, TINY)
    return serve_folder(folder, None)


def test_every_ticket_is_played_to_its_end_and_every_call_is_kept(served: Served) -> None:
    tasks = draw_tasks(TRAIN, SEATS + 9, 0)
    played = Sampler(served, 1.0, 0).play(tasks)
    assert {one.task.task_id for one in played} == {task.task_id for task in tasks}
    for one in played:
        assert 1 <= one.verdict.model_calls == len(one.calls) <= MAX_CALLS
        assert [message["role"] for message in one.messages[:2]] == ["system", "user"]
        assert all(len(call.output_token_ids) == len(call.behavior_logprobs) for call in one.calls)


def test_a_seed_plays_the_same_trajectories_again(served: Served) -> None:
    tasks = draw_tasks(TRAIN, 4, 0)
    first, again, other = ([one.logged() for one in Sampler(served, 1.0, seed).play(tasks * 2)] for seed in (1, 1, 2))
    assert first == again  # ids too: the order in which trajectories are learnt goes by them
    assert first != other
    assert len({one.trajectory_id for one in first}) == len(first)


def test_what_was_played_is_a_row_of_a_snapshot(served: Served) -> None:
    (played,) = Sampler(served, 1.0, 0).play(draw_tasks(TRAIN, 1, 0))
    logged = played.logged()
    assert (logged.task_key, logged.reward) == (played.task.task_id, float(played.verdict.success))
    assert logged.calls == played.calls


def test_an_exam_plays_every_ticket_in_both_modes(served: Served) -> None:
    exam = take_exam(served, 6, 0)
    assert {mode: exam.success(mode).trials for mode in (GREEDY, SAMPLED)} == {GREEDY: 6, SAMPLED: 6}  # pyright: ignore[reportOptionalMemberAccess] - it is there

"""TextArena's games as policies play them: a perfect player always wins, answers of any kind end, nothing is shared."""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from itertools import combinations

import pytest

from ratchet.bus.message import JsonObject
from tools.learning.worlds.games import (
    GUESS,
    HELD_OUT_GAMES,
    NIM,
    Game,
    board_of,
    demonstrated,
    drawn_games,
    games,
)

try:
    version("textarena")
except PackageNotFoundError:
    pytest.skip("no TextArena here: `make tasks`", allow_module_level=True)

HELD_OUT, TRAINING = drawn_games(HELD_OUT_GAMES, held_out=True), drawn_games(96, held_out=False)


def play(game: Game, answer: Callable[[list[JsonObject]], str]) -> bool:
    episode = game.begin()
    messages = episode.opening()
    while episode.open:
        reply: JsonObject = {"role": "assistant", "content": answer(messages)}
        messages += [reply, *episode.answer(reply)]
    return episode.verdict().success


def halved(game: Game) -> Callable[[list[JsonObject]], str]:
    """Always the middle of what is left."""
    low, high = game.numbers

    def guess(messages: list[JsonObject]) -> str:
        nonlocal low, high
        middle = (low + high) // 2
        if len(messages) > 1:
            low, high = (middle + 1, high) if "higher" in messages[-1]["content"] else (low, middle - 1)
        return f"[{(low + high) // 2}]"

    return guess


def mirrored(messages: list[JsonObject]) -> str:
    """Makes both piles alike."""
    one, other = board_of(messages[-1]["content"])
    return f"[0 {one - other}]" if one > other else f"[1 {other - one}]"


def test_whoever_halves_or_mirrors_wins_every_held_out_game() -> None:
    assert all(play(game, halved(game) if game.kind == GUESS else mirrored) for game in HELD_OUT)


def test_demonstrations_are_legal_and_lose_often() -> None:
    won = {GUESS: 0, NIM: 0}
    for game in TRAINING:
        moves = iter(
            [message["content"] for message in demonstrated(game, 0).messages if message["role"] == "assistant"]
        )
        won[game.kind] += play(game, lambda _, moves=moves: next(moves))
        assert next(moves, None) is None
    assert all(0.15 < count / 96 < 0.65 for count in won.values())


def test_held_out_ranges_and_piles_never_occur_in_training() -> None:
    numbers = [{(one.kind, one.numbers) for one in some} for some in (HELD_OUT, TRAINING)]
    assert not numbers[0] & numbers[1]
    ids = [one.task_id for one in (*HELD_OUT, *TRAINING)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    "text",
    ["", "[", "[x]", "[99999999999999999999999999]", "[0 0]", "[-1 2]", "[Player 0]" * 50, "\u0000", "[1] [2] [3]"],
)
def test_any_answer_ends_the_game_sooner_or_later(text: str) -> None:
    for game in (HELD_OUT[0], HELD_OUT[-1]):
        assert isinstance(play(game, lambda _: text), bool)


def test_a_closed_game_takes_no_answer() -> None:
    episode = HELD_OUT[0].begin()
    while episode.open:
        episode.answer({"role": "assistant", "content": "pass"})
    with pytest.raises(ValueError, match="is over"):
        episode.answer({"role": "assistant", "content": "[1]"})


def test_games_leave_the_shared_generator_alone_and_do_not_depend_on_it() -> None:
    random.seed(3)
    expected = random.random()
    random.seed(3)
    episodes = [game.begin().opening() for game in HELD_OUT[::40]]
    assert random.random() == expected
    assert episodes == [game.begin().opening() for game in HELD_OUT[::40]]


def test_tries_of_a_game_side_by_side_do_not_touch_each_other() -> None:
    for game in (HELD_OUT[0], HELD_OUT[-1]):
        one, other = game.begin(), game.begin()
        assert one.opening() == other.opening()
        move = {"role": "assistant", "content": f"[{game.numbers[0]}]" if game.kind == GUESS else "[0 1]"}
        assert one.answer(move) == other.answer(move)


def test_the_policy_reads_neither_its_own_moves_nor_old_boards() -> None:
    nim = next(one for one in TRAINING if one.kind == NIM and min(one.numbers) > 2)
    episode = nim.begin()
    assert episode.opening()[0]["content"].count("pile 0:") == 1
    (news,) = episode.answer({"role": "assistant", "content": "[0 1]"})
    assert news["content"].count("pile 0:") == 1
    assert "[0 1]" not in news["content"]


def test_worlds_of_two_seeds_have_the_same_exam() -> None:
    first, other = games(0), games(1)
    assert first.exam == other.exam
    assert first.training(8, 1) != first.training(8, 2)
    for some, more in combinations([first.training(8, 1), first.training(8, 1)], 2):
        assert some == more

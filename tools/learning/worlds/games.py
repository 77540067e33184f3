"""Two games of TextArena (MIT), turn by turn: Guess The Number, and Nim against an opponent who moves at random.

Held-out games have ranges and piles that never occur in training. TextArena draws from the one generator that all of
Python shares, and sets its seed: what others draw from it goes on as if no game had begun.
"""

from __future__ import annotations

import random
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ratchet.bus.message import JsonObject
from ratchet.local.demo.plan import Reinforced, Supervised
from tools.learning.worlds.base import Engine, Outcome
from tools.learning.worlds.public import Demonstration, NoTasks, PublicTasks

GUESS, NIM = "guess the number", "nim"
MOST_ANSWERS = 12
"""A game that has not ended by then is lost; every rule of these ends it before."""
SIZES = range(10, 16)
"""Numbers in a range: four guesses find any of them, if every guess halves what is left."""
GUESSES = 3
"""TextArena announces so many and takes one more."""
PILES = range(1, 7)
TRAINING_GAMES, HELD_OUT_GAMES = 96, 40
"""Of each game."""
ENGINE = Engine(max_tokens=10, seats=32, prefix_tokens=20_000, together=8)
IMITATION = Supervised(examples=48, steps=12, learning_rate=1e-3, batch=8)
CYCLE = Reinforced(sample_size=160, learning_rate=5e-4, epochs=1, batch=32)
_GAME = -1
"""TextArena's number for what is no player."""


@dataclass(frozen=True, slots=True)
class Game:
    """A `Task`: one game with its seed."""

    kind: str
    numbers: tuple[int, int]
    """The range, or the two piles."""
    seed: int
    tools: list[JsonObject] = field(default_factory=list[JsonObject])

    @property
    def task_id(self) -> str:
        """See `Task`."""
        return f"{self.kind} {self.numbers[0]} {self.numbers[1]} {self.seed}"

    def begin(self) -> GameEpisode:
        """See `Task`."""
        return GameEpisode(self)


class GameEpisode:
    """`Episode` of a game. The policy is player 0, and begins."""

    def __init__(self, game: Game) -> None:
        self._game = game
        self._opponent = random.Random(f"opponent {game.task_id}")
        self._environment = _environment(game)
        with _own_draws():
            self._environment.reset(1 if game.kind == GUESS else 2, seed=game.seed)
        self.open = True
        self._won = False
        self._answers = 0

    def opening(self) -> list[JsonObject]:
        """See `Episode`."""
        return [{"role": "user", "content": self._seen()}]

    def answer(self, reply: JsonObject) -> list[JsonObject]:
        """See `Episode`."""
        if not self.open:
            raise ValueError(f"{self._game.task_id} is over")
        self._answers += 1
        self._move(str(reply.get("content") or ""))
        while self.open and self._environment.state.current_player_id != 0:
            self._move(_random_move(self._piles(), self._opponent))
        if self.open and self._answers >= MOST_ANSWERS:
            self.open = False
        return [{"role": "user", "content": self._seen()}] if self.open else []

    def verdict(self) -> Outcome:
        """See `Episode`."""
        return Outcome(self._won)

    def _move(self, text: str) -> None:
        try:
            with _own_draws():
                done, _ = self._environment.step(text)
        except Exception:  # noqa: BLE001 - some answers break the games themselves: such an answer loses
            self.open = False
            return
        if done:
            rewards, _ = self._environment.close()
            self.open, self._won = False, rewards[0] == 1

    def _seen(self) -> str:
        """What player 0 reads: all news of the game, and of boards the last."""
        _, news = self._environment.get_observation()
        texts = [(text, kind.name) for sender, text, kind in news if sender == _GAME]
        boards = [place for place, (_, kind) in enumerate(texts) if kind == "GAME_BOARD"]
        return "\n".join(text for place, (text, _) in enumerate(texts) if place not in boards[:-1])

    def _piles(self) -> Sequence[int]:
        return self._environment.state.game_state["piles"]


def games(seed: int) -> PublicTasks:
    """The world of a seed. Raises `NoTasks`."""
    try:
        version("textarena")
    except PackageNotFoundError as error:
        raise NoTasks("the games are in the package textarena, which is not installed: make tasks") from error
    training = drawn_games(TRAINING_GAMES, held_out=False)
    return PublicTasks(
        seed=seed,
        tasks=training,
        exam=drawn_games(HELD_OUT_GAMES, held_out=True),
        shown=_shown(),
        engine=ENGINE,
        imitation=IMITATION,
        cycle=CYCLE,
    )


def drawn_games(count: int, *, held_out: bool) -> list[Game]:
    """So many of each game, no two alike."""
    draw = random.Random(f"games {held_out}")
    numbers = {
        GUESS: [(low, low + size - 1) for low in range(1, 61) for size in SIZES if (low % 4 == 0) == held_out],
        NIM: [
            (pile, other) for pile in PILES for other in PILES if pile != other and (pile * other % 5 == 2) == held_out
        ],
    }
    return [
        Game(kind, of_kind[place % len(of_kind)], 2 * place + held_out)
        for kind, of_kind in numbers.items()
        for of_kind in [draw.sample(of_kind, len(of_kind))]
        for place in range(count)
    ]


def demonstrated(game: Game, seed: int) -> Demonstration:
    """A game played by legal moves without a plan."""
    draw = random.Random(f"demonstration {seed} {game.task_id}")
    episode = game.begin()
    messages, tried = episode.opening(), set[int]()
    while episode.open:
        if game.kind == GUESS:
            number = draw.choice([guess for guess in range(game.numbers[0], game.numbers[1] + 1) if guess not in tried])
            tried.add(number)
            move = f"[{number}]"
        else:
            move = _random_move(board_of(str(messages[-1]["content"])), draw)
        reply: JsonObject = {"role": "assistant", "content": move}
        messages += [reply, *episode.answer(reply)]
    return Demonstration(game, messages)


def board_of(text: str) -> list[int]:
    """The piles that a message shows."""
    return [int(count) for count in re.findall(r"pile \d+: (\d+)", text)]


@cache
def _shown() -> tuple[Demonstration, ...]:
    return tuple(demonstrated(game, 0) for game in drawn_games(TRAINING_GAMES, held_out=False))


def _random_move(piles: Sequence[int], draw: random.Random) -> str:
    pile = draw.choice([place for place, count in enumerate(piles) if count])
    return f"[{pile} {draw.randint(1, piles[pile])}]"


def _environment(game: Game) -> Any:
    """TextArena's own; its classes carry no usable types."""
    # Not a dependency of Ratchet's.
    if game.kind == GUESS:
        from textarena.envs.GuessTheNumber.env import GuessTheNumberEnv  # noqa: PLC0415  # pyright: ignore

        return GuessTheNumberEnv(*game.numbers, max_turns=GUESSES)
    from textarena.envs.Nim.env import NimEnv  # noqa: PLC0415  # pyright: ignore

    return NimEnv(list(game.numbers))


@contextmanager
def _own_draws() -> Generator[None]:
    """Leave Python's shared generator as it was."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)

"""Episodes of trajectories: what is read of them, what is kept, and what hostile ones do to it."""

from __future__ import annotations

import math
import random
import string
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from ratchet.analyst.mining.base import MOST_VALUES
from ratchet.analyst.mining.calls import members_of
from ratchet.analyst.mining.features import LEAST_SUBJECTS, MOST_COMPONENTS, TRACKED, EpisodeBuilder
from ratchet.analyst.mining.texts import (
    LONGEST_NAME,
    MOST_TERMS,
    language_of,
    name_of,
    one_line,
    signature_of,
    terms_of,
)
from ratchet.core.contract import Outcome, Trajectory
from ratchet.core.contract.learning import Trigger
from ratchet.core.contract.trajectory import TrajectoryMetadata
from tests.support.hostile import OFF_UNICODE
from tests.support.messages import AT, trajectory
from tests.support.mined_trajectories import HOSTILE_NAMES, answer, asked, call


def built(*trajectories: Trajectory, keep: tuple[Trigger, ...] = (), **given: Any) -> Any:
    builder = EpisodeBuilder(keep)
    for each in trajectories:
        builder.add(each, **({"reward": None, "components": {}, "feedback": False} | given))
    return builder.build()


def test_episodes_hold_what_trajectories_measured() -> None:
    episodes = built(
        asked(
            "where is it?",
            [call("find"), answer("12345")],
            outcome=Outcome(status="failure"),
            metadata=TrajectoryMetadata(model="m", total_tokens=7, total_cost_usd=0.5),
        ),
        reward=0.25,
        components={"safety": 1.0},
        feedback=True,
    )
    assert {name: values.tolist() for name, values in episodes.measures.items()} == {
        "failure": [1.0],
        "reward": [0.25],
        "cost_usd": [0.5],
        "latency_ms": [3000.0],
        "tokens": [7.0],
        "calls": [2.0],
        "feedback": [1.0],
        "answer_chars": [5.0],
    }
    assert episodes.components["safety"].tolist() == [1.0]


def test_episodes_know_nothing_of_outcomes_that_no_report_names() -> None:
    episodes = built(trajectory(outcome=None, end_timestamp=AT))
    unknown = ("failure", "reward", "cost_usd", "latency_ms")
    assert all(np.isnan(episodes.measures[name]).all() for name in unknown)


def test_episodes_stand_in_the_order_of_their_end() -> None:
    late, early = (trajectory(name, end_timestamp=AT + timedelta(hours=h)) for name, h in (("late", 5), ("early", 1)))
    episodes = built(late, early)
    assert episodes.ids == (early.trajectory_id, late.trajectory_id)


def test_subjects_are_users_else_sessions_else_trajectories() -> None:
    users = [trajectory(name, user_ref="u", session_id=name) for name in "ab"]
    sessions = [trajectory(name, session_id="s") for name in "cd"]
    alone = [trajectory(name, session_id="") for name in "ef"]
    subject = built(*users, *sessions, *alone).subject.tolist()
    assert len(set(subject)) == 4
    assert (subject.count(subject[0]), subject.count(subject[2])) == (2, 2)


@pytest.mark.parametrize("distinct", [TRACKED + 5000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_builder_keeps_frequent_values_among_distinct_ones(distinct: int) -> None:
    builder, episodes = EpisodeBuilder(), distinct // (MOST_TERMS - 1)
    for number in range(episodes):
        names = [f"doc {number} {place}" for place in range(MOST_TERMS - 1)]
        builder.add(trajectory(str(number)), reward=1, components={}, feedback=False, documents=["common", *names])
    document = builder.build().members["document"]
    assert document.values == ("common",)
    assert document.matrix.sum() == episodes


def test_builder_keeps_the_most_frequent_values_alone() -> None:
    builder = EpisodeBuilder()
    for number in range(LEAST_SUBJECTS):
        many = [[f"doc {place}" for place in range(start, start + MOST_TERMS)] for start in range(0, 400, MOST_TERMS)]
        for place, names in enumerate(many):
            builder.add(trajectory(f"{number} {place}"), reward=1, components={}, feedback=False, documents=names)
    assert len(builder.build().members["document"].values) == MOST_VALUES


def test_builder_drops_a_value_that_one_subject_has_many_times() -> None:
    name = Trigger(attribute="agent", value="rare")
    of_one = [trajectory(str(number), agent_id="rare", user_ref="one") for number in range(20)]
    others = [trajectory(f"other {number}", agent_id="rare") for number in range(LEAST_SUBJECTS - 1)]
    assert not built(*of_one).matching([name]).any()
    assert built(*of_one, *others).matching([name]).all()


def test_builder_drops_values_of_few_subjects_unless_they_are_kept() -> None:
    seen = [trajectory(str(number), agent_id="rare") for number in range(LEAST_SUBJECTS - 1)]
    rare = Trigger(attribute="agent", value="rare")
    assert not built(*seen).matching([rare]).any()
    assert built(*seen, keep=(rare,)).matching([rare]).all()


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e308, None])
def test_numbers_that_cannot_be_true_are_unknown(number: float | None) -> None:
    episodes = built(trajectory(), reward=number, components={"x": number})
    assert np.isnan([episodes.measures["reward"][0], episodes.components["x"][0]]).all()


def test_components_are_bounded_in_number() -> None:
    episodes = built(trajectory(), components={f"c{number}": 1.0 for number in range(1000)})
    assert len(episodes.components) == MOST_COMPONENTS


def test_components_that_come_late_are_unknown_before() -> None:
    builder = EpisodeBuilder()
    for name, components in (("a", {}), ("b", {"x": 1.0}), ("c", {})):
        builder.add(trajectory(name), reward=None, components=components, feedback=False)
    episodes = builder.build()
    assert np.isnan(episodes.components["x"]).tolist() == [True, False, True]
    assert episodes.matching([Trigger(attribute="component", value="x")]).tolist() == [False, True, False]


def test_an_empty_window_has_no_episodes() -> None:
    episodes = built()
    assert (len(episodes), episodes.ids, len(episodes.part())) == (0, (), 0)


@pytest.mark.parametrize("at", [datetime.min, datetime.max, datetime(1, 1, 1, tzinfo=UTC)])
def test_clocks_that_are_wrong_break_nothing(at: datetime) -> None:
    assert len(built(trajectory(start_timestamp=at, end_timestamp=at))) == 1


def test_builder_takes_hostile_trajectories() -> None:
    chance = random.Random(3)
    seen: list[Trajectory] = []
    for number in range(300):
        text, other, third = (chance.choice(HOSTILE_NAMES) for _ in range(3))
        parts: Any = [text, {"messages": [{"role": "user", "content": other}]}, [{"text": text}], [], {}]
        outputs: Any = [text, {"error": other}, None]
        turns = [call(text or "t", {"a": other}, third or None, chance.choice(outputs))]
        turns = [call(text, {})] * 5 if chance.random() < 0.3 else turns
        labels: Any = {"task_type": chance.choice([text, 7])}
        seen.append(asked(chance.choice(parts), turns, str(number % 3), agent_id=other, labels=labels))
    episodes = built(*seen, components=dict.fromkeys(HOSTILE_NAMES, 1.0))
    values = [value for table in (*episodes.columns.values(), *episodes.members.values()) for value in table.values]
    assert values
    assert all(0 < len(value) <= LONGEST_NAME and value.isprintable() for value in values)
    assert not any(mark in value for value in values for mark in "<>`|")


@pytest.mark.parametrize("text", [*HOSTILE_NAMES, *OFF_UNICODE], ids=lambda text: repr(text[:12]))
def test_names_are_on_one_line_and_bounded(text: str) -> None:
    for name in (name_of(text), signature_of(text, text), one_line(text, 50), *terms_of(text)):
        assert len(name) <= LONGEST_NAME
        assert name.isprintable()
    assert len(terms_of(text)) <= MOST_TERMS
    language_of(text)


def test_names_hold_no_secrets() -> None:
    secret = "sk-proj-" + string.ascii_lowercase + string.digits
    shown = name_of(f"key {secret} of mia@example.com"), signature_of("find", f"{secret} refused for mia@example.com")
    assert not any(part in name for name in shown for part in (secret[8:20], "mia@"))


def test_signatures_are_the_same_for_the_same_error() -> None:
    errors = ("order 17 of 'Mia' not found at 0x7fff12", "order 99 of 'Bo' not found at 0x10aa")
    assert len({signature_of("find", error) for error in errors}) == 1


@pytest.mark.parametrize(
    ("text", "language"),
    [("where is my order", "en"), ("wo ist meine Bestellung", "de"), ("注文はどこですか", "ja"), ("12 34", None)],
)
def test_language_is_guessed_from_script_and_function_words(text: str, language: str | None) -> None:
    assert language_of(text) == language


FAILED = call("find", {"id": 1}, "not found")


@pytest.mark.parametrize(
    ("turns", "behavior"),
    [
        ([call("find", {"id": 1})] * 3 + [answer("x")], {"repeated_calls"}),
        ([call("find", {"id": n}) for n in range(3)] + [answer("x")], set()),
        ([call("a"), call("b")] * 3 + [answer("x")], {"repeated_calls", "call_loop"}),
        ([FAILED, call("find", {"id": 2}, "not found"), call("find", {"id": 3}), answer("x")], {"retries"}),
        ([FAILED, answer("sorry")], {"early_quit"}),
        ([answer("hello")], {"no_tool_called"}),
        ([call("find")], {"ended_on_call"}),
    ],
)
def test_behaviour_of_a_trajectory(turns: Any, behavior: set[str]) -> None:
    assert set(members_of(asked("q", turns).turns, offered=True)["behavior"]) == behavior


def test_errors_are_read_from_results_of_chats_too() -> None:
    outputs = [
        "Error: no seats",
        '{"error": "no seats"}',
        {"error": "no seats"},
        "all errors are gone",
        {"error": None},
    ]
    failing = [bool(members_of([call("book", output=output)], offered=True)["tool_error"]) for output in outputs]
    assert failing == [True, True, True, False, False]

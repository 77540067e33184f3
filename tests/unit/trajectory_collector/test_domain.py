"""Assembling trajectories from turns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import permutations
from typing import Any

import msgspec
import pytest

from ratchet.core.contract import MESSAGES, Message, Outcome, Trajectory, TrajectoryEnd, Turn, named_id
from ratchet.core.contract.trajectory import Quality, TaskContext
from ratchet.core.contract.turn import EngineInfo, Sampling, Trainable
from ratchet.core.rules.chat import chat_messages
from ratchet.core.rules.recorded import recorded_chat, recorded_parts
from ratchet.core.service.contracts import load_contracts
from ratchet.trajectory_collector.app import collected
from ratchet.trajectory_collector.domain import (
    Inference,
    Report,
    Run,
    assemble,
    assemble_idle,
    assembly_id,
    child_id,
    is_complete,
    is_fuller,
    possible_children,
    report_of,
    update_of,
)
from ratchet.trajectory_collector.rows import TABLES
from tests.support.contract_files import CONTRACTS
from tests.support.messages import AT, trajectory, trajectory_end, turn


def whole(end: TrajectoryEnd, turns: Sequence[Turn]) -> Trajectory:
    """The only trajectory of these turns."""
    (one,) = assemble(end, Run(turns)).trajectories
    return one


def silent(role: str, trajectory_id: str, turns: Sequence[Turn]) -> Trajectory:
    """The only trajectory of these turns, without an end."""
    (one,) = assemble_idle(role, trajectory_id, Run(turns)).trajectories
    return one


def test_the_assembled_trajectory_holds_the_chat_of_its_turns() -> None:
    turns = [turn("ride", n) for n in range(3)]
    assembled = whole(trajectory_end("ride"), turns)
    contents = [message["content"] for message in chat_messages(assembled)]
    assert contents == ["Be helpful.", "question 0", "answer 0", "question 1", "answer 1", "question 2", "answer 2"]
    assert [entry.turn_ref for entry in assembled.turns] == [one.turn_id for one in turns]
    assert assembled.metadata.total_tokens == 45


def test_policy_is_a_fact_from_turns_and_mixed_when_arm_changed_in_flight() -> None:
    first, second = turn("ride", 0), turn("ride", 1)
    assert whole(trajectory_end("ride"), [first, second]).policy == first.policy
    other = msgspec.structs.replace(second, policy=msgspec.structs.replace(second.policy, arm="canary", version=2))
    policy = whole(trajectory_end("ride"), [first, other]).policy
    assert policy is not None
    assert (policy.arm, policy.version) == ("mixed", 1)


def test_a_trajectory_in_which_version_0_is_registered_is_not_mixed() -> None:
    first, second = turn("ride", 0), turn("ride", 1)
    before = msgspec.structs.replace(first.policy, version=0, digest="")
    registered = msgspec.structs.replace(first.policy, version=0)
    turns = [msgspec.structs.replace(first, policy=before), msgspec.structs.replace(second, policy=registered)]
    assert whole(trajectory_end("ride"), turns).policy == before


def test_instructions_and_tools_are_the_ones_the_model_saw() -> None:
    tools = [{"type": "function", "function": {"name": "lookup"}}]
    assembled = whole(trajectory_end("ride"), [turn("ride", 0, tools=tools, tools_digest="1" * 64)])
    assert assembled.task_context.instructions == "Be helpful."
    assert assembled.task_context.tools == tools
    assert assembled.task_context.group_key == "group-ride"


def test_an_end_without_a_task_is_a_task_of_its_own() -> None:
    assembled = whole(trajectory_end("ride", task_context=None), [turn("ride")])
    assert assembled.task_context == TaskContext(task_id=assembled.trajectory_id, instructions="Be helpful.")


@pytest.mark.parametrize(
    ("seen", "stored", "complete"), [(None, 0, False), (None, 1, True), (2, 1, False), (2, 2, True), (0, 0, False)]
)
def test_trajectory_is_complete_when_the_turns_that_gateway_saw_are_stored(
    seen: int | None, stored: int, complete: bool
) -> None:
    assert is_complete(trajectory_end(turns=seen), Run([turn("one", n) for n in range(stored)])) is complete


def test_end_that_overtakes_turns_waits_for_those_on_which_others_follow() -> None:
    turns = [turn("one", n) for n in range(3)]
    assert not is_complete(trajectory_end(), Run([turns[0], turns[2]]))
    assert is_complete(trajectory_end(), Run(turns))
    whole_prompt = msgspec.structs.replace(turns[2], parent_messages=0)
    assert is_complete(trajectory_end(), Run([turns[0], whole_prompt]))


def test_every_message_of_a_collected_stream_has_a_handler() -> None:
    contracts = load_contracts()
    streams = collected(contracts)
    assert {name for name, topic in contracts.topics.items() if topic.stream in streams} == set(TABLES)
    kinds: list[type[Message]] = [MESSAGES[topic] for topic in TABLES]
    assert len(kinds) == len({table.name for table in TABLES.values()})


def test_silent_trajectory_claims_nothing_and_is_same_from_every_collector() -> None:
    turns = [turn("ride", n) for n in range(2)]
    assembled = silent("support", turns[0].trajectory_id, turns)
    assert assembled == silent("support", turns[0].trajectory_id, turns)
    assert (assembled.outcome, assembled.end_timestamp) == (None, turns[1].timestamp)
    assert assembled.event_id == whole(trajectory_end("ride"), turns).event_id


def test_each_set_of_turns_is_a_report_of_its_own_of_one_event() -> None:
    short, long = (
        silent("support", turn("ride").trajectory_id, [turn("ride", n) for n in range(count)]) for count in (1, 2)
    )
    assert short.event_id == long.event_id
    assert len({assembly_id(short), assembly_id(long), short.event_id}) == 3


def test_only_a_provisional_report_is_replaced_and_only_by_a_fuller_one() -> None:
    turns = [turn("ride", n) for n in range(2)]
    short, long = (silent("support", turns[0].trajectory_id, turns[:count]) for count in (1, 2))
    ended = whole(trajectory_end("ride"), turns)
    client = trajectory("ride")
    reports = (short, long, ended, client)
    fuller = [(reports.index(a), reports.index(b)) for a in reports for b in reports if is_fuller(a, report_of(b))]
    assert fuller == [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1)]
    assert not Report("assembled", 1, has_outcome=True).is_provisional


def test_late_claims_of_an_agent_ask_for_a_revision_and_are_no_opinion() -> None:
    """An outcome, a quality or a label alone is enough; equal claims ask once, other claims again."""
    quiet = trajectory("ride", outcome=None)
    assert update_of(quiet) is None
    claiming = [
        trajectory("ride", outcome=Outcome(status="failure")),
        trajectory("ride", outcome=None, quality=Quality(lint_score=9.0)),
        trajectory("ride", outcome=None, labels={"scores": {"safety": 0.0}}),
    ]
    updates = [update_of(one) for one in claiming]
    assert [update.kind for update in updates if update] == ["update"] * 3
    assert all(update.score is None for update in updates if update)
    assert len({update.feedback_id for update in updates if update}) == 3
    assert update_of(claiming[0]) == updates[0]
    CONTRACTS.check_strict(updates[0] or claiming[0])


@pytest.mark.parametrize("adds", [{"quality": Quality(lint_score=9.0)}, {"labels": {"scores": {"safety": 0.0}}}])
def test_a_report_without_an_outcome_that_adds_quality_or_labels_is_fuller(adds: dict[str, Any]) -> None:
    turns = [turn("ride", n) for n in range(2)]
    quiet = silent("support", turns[0].trajectory_id, turns)
    ended = whole(trajectory_end("ride", outcome=None, **adds), turns)
    assert is_fuller(ended, report_of(quiet))
    assert not is_fuller(ended, report_of(ended))
    assert not is_fuller(quiet, report_of(ended))


def test_a_trajectory_in_two_roles_is_two_events_and_two_reports() -> None:
    turns = [turn("ride", n) for n in range(2)]
    one, other = (silent(role, turns[0].trajectory_id, turns) for role in ("planner", "support"))
    assert one.event_id != other.event_id
    assert assembly_id(one) != assembly_id(other)
    assert trajectory_end("ride").event_id != trajectory_end("ride", role="planner").event_id


def later(one: Turn, seconds: float, **changes: Any) -> Turn:
    return msgspec.structs.replace(one, timestamp=AT + timedelta(seconds=seconds), **changes)


def asking(name: str, seconds: float, question: str, **changes: Any) -> Turn:
    """A call of the trajectory `run` that begins a conversation."""
    prompt = [{"role": "user", "content": question}]
    return later(turn("run", turn_id=named_id("turn", name), messages=prompt, **changes), seconds)


def test_histories_that_share_an_id_become_linked_trajectories() -> None:
    """A planner and its workers behind one client's headers."""
    planner = [later(turn("run", number), 10.0 * number) for number in range(2)]
    workers = [asking(f"w{number}", 3.0 + number, f"do {number}") for number in range(2)]
    end = trajectory_end("run", labels={"x": 1}, session_id="s")
    main, *children = assemble(end, Run([*workers, *planner])).trajectories
    assert main == whole(end, planner)
    assert main.recorded_as is None
    assert [child.trajectory_id for child in children] == [
        child_id("support", main.trajectory_id, worker.turn_id) for worker in reversed(workers)
    ]
    for child in children:
        CONTRACTS.check_strict(child)
        assert (child.parent_trajectory_id, child.recorded_as) == (main.trajectory_id, main.trajectory_id)
        assert (child.session_id, child.outcome, child.labels) == ("s", end.outcome, {"x": 1})
        assert child.task_context.task_id.startswith("task-run/")
        assert (child.task_context.group_key or "").startswith("group-run/")
    assert len({child.task_context.group_key for child in children}) == 2


def test_samples_of_one_question_are_tries_of_one_task() -> None:
    samples = [
        asking(f"s{number}", number, "why?", response={"role": "assistant", "content": f"{number}"})
        for number in range(5)
    ]
    trajectories = assemble(trajectory_end("run"), Run(samples)).trajectories
    assert len({one.trajectory_id for one in trajectories}) == 5
    assert {one.task_context.group_key for one in trajectories} == {"group-run"}


def test_same_turns_give_the_same_trajectories_in_whatever_order_they_come() -> None:
    turns = [turn("run"), asking("a", 1, "a"), asking("b", 2, "b"), later(turn("run", 1), 5)]
    expected = assemble(trajectory_end("run"), Run(turns))
    assert all(assemble(trajectory_end("run"), Run(order)) == expected for order in permutations(turns))


def test_a_late_call_adds_a_trajectory_and_changes_no_other_id() -> None:
    turns = [asking("a", 1, "a"), asking("b", 2, "b")]
    early = assemble_idle("support", turns[0].trajectory_id, Run(turns)).trajectories
    longer = [later(turn("run", number), 100.0 * number) for number in range(3)]
    late = assemble_idle("support", turns[0].trajectory_id, Run([*turns, *longer], early[0], early[1:])).trajectories
    ids = {one.trajectory_id: [entry.turn_ref for entry in one.turns] for one in late}
    assert all(ids[one.trajectory_id] == [entry.turn_ref for entry in one.turns] for one in early)
    assert len(ids) == 3


def test_after_a_final_report_only_further_conversations_follow() -> None:
    """What was claimed at the end counts for those that began before it."""
    turns = [later(turn("run", number), number) for number in range(2)]
    stored = whole(trajectory_end("run", timestamp=AT + timedelta(seconds=50), labels={"x": 1}), turns)
    straggler, reuse = asking("late", 40, "late"), asking("reuse", 9 * 86400, "another matter")
    goes_on = later(turn("run", 2), 60)
    every = Run([*turns, straggler, reuse, goes_on], stored)
    children = assemble_idle("support", stored.trajectory_id, every).trajectories
    assert {child.parent_trajectory_id for child in children} == {stored.trajectory_id}
    claimed = {own_calls(child)[0]: (child.outcome, child.labels) for child in children}
    unclaimed = (None, None)
    assert claimed == {
        straggler.turn_id: (stored.outcome, {"x": 1}),
        reuse.turn_id: unclaimed,
        goes_on.turn_id: unclaimed,
    }
    reported = Run([*turns, straggler], trajectory("run"))
    assert assemble_idle("support", stored.trajectory_id, reported).trajectories == []


def fan_out() -> list[Turn]:
    """A planner's answer, then five workers of two calls each that begin with it."""
    turns = [later(turn("run", 0), 0)]
    for worker in range(5):
        before = turns[0]
        for number in range(2):
            name = named_id("turn", "worker", worker, number)
            prompt = [{"role": "user", "content": f"do part {worker}.{number}"}]
            before = later(
                turn("run", 1 + number, turn_id=name, messages=prompt, parent_turn_id=before.turn_id),
                10.0 + worker + 10 * number,
            )
            turns.append(before)
    return turns


def own_calls(one: Trajectory) -> list[str]:
    return [entry.turn_ref for entry in one.turns if entry.turn_ref]


def test_branches_of_a_shared_history_are_children_with_each_call_once() -> None:
    turns = fan_out()
    main, *children = assemble(trajectory_end("run"), Run(turns)).trajectories
    assert sorted([call for one in (main, *children) for call in own_calls(one)]) == sorted(t.turn_id for t in turns)
    assert [len(own_calls(one)) for one in (main, *children)] == [3, 2, 2, 2, 2]
    for child in children:
        CONTRACTS.check_strict(child)
        assert child.parent_trajectory_id == main.trajectory_id
        contents = [message["content"] for message in chat_messages(child)]
        assert contents[:3] == ["Be helpful.", "question 0", "answer 0"]
        assert recorded_chat(child, turns)[-1]["role"] == "assistant"
        assert [message["content"] for message in recorded_chat(child, turns)] == contents
        assert [begin for _, begin in recorded_parts(child, turns)] == [4]


def test_branches_keep_their_trajectories_when_later_calls_come() -> None:
    """Whichever of them grows: what was assembled once stays where it is."""
    turns = fan_out()
    early = assemble_idle("support", turns[0].trajectory_id, Run(turns)).trajectories
    held = {one.trajectory_id: own_calls(one) for one in early}
    for grown in turns[2::2]:
        more = later(turn("run", 3, turn_id=named_id("more"), messages=[], parent_turn_id=grown.turn_id), 100)
        late = assemble_idle("support", turns[0].trajectory_id, Run([*turns, more], early[0], early[1:])).trajectories
        ids = {one.trajectory_id: own_calls(one) for one in late}
        expected = {key: [*calls, more.turn_id] if grown.turn_id in calls else calls for key, calls in held.items()}
        assert ids == expected
        assert set(possible_children("support", turns[0].trajectory_id, [*turns, more])) >= set(ids) - set(held) | {
            one.trajectory_id for one in early[1:]
        }


def test_of_calls_with_equal_prompts_one_counts_and_the_others_are_counted() -> None:
    first = later(turn("run", 0), 0)
    attempts = [
        later(turn("run", 1, attempt=number, turn_id=named_id("attempt", number)), number) for number in (1, 2, 3)
    ]
    assembled = assemble(trajectory_end("run"), Run([first, *attempts]))
    assert [own_calls(one) for one in assembled.trajectories] == [[first.turn_id, attempts[2].turn_id]]
    assert assembled.repeated == 2


def test_a_run_without_an_answer_gives_way_to_one_that_has_any() -> None:
    failed = later(turn("run", response=None, error="engine away", turn_id=named_id("failed")), 0)
    silent_failure = silent("support", failed.trajectory_id, [failed])
    assert silent_failure.outcome == Outcome(status="failure", inferred_from="error")
    answered = silent("support", failed.trajectory_id, [failed, later(turn("run"), 5)])
    assert is_fuller(answered, report_of(silent_failure))
    ended = whole(trajectory_end("run"), [failed])
    (child,) = assemble_idle(
        "support", failed.trajectory_id, Run([failed, later(turn("run"), 9 * 86400)], ended)
    ).trajectories
    assert (child.parent_trajectory_id, child.outcome) == (failed.trajectory_id, None)


def test_a_run_whose_calls_could_not_be_recorded_is_no_failure() -> None:
    lost = turn("run", messages=[], response=None, trainable=Trainable(ok=False, reason="too_large"))
    bare = silent("support", lost.trajectory_id, [lost])
    assert (bare.outcome, bare.metadata.error) == (None, "no call was answered (too_large)")


def test_an_end_without_an_answered_call_is_a_failure_with_its_error() -> None:
    asked = [{"role": "system", "content": "Be helpful."}, {"role": "user", "content": "hi"}]
    calls = [
        later(turn("run", response=None, error=f"error {n}", turn_id=named_id(n), messages=asked), n) for n in range(2)
    ]
    failed = whole(trajectory_end("run", outcome=None), calls)
    CONTRACTS.check_strict(failed)
    assert (failed.outcome, failed.metadata.error) == (Outcome(status="failure", inferred_from="error"), "error 1")
    (entry,) = failed.turns
    assert (entry.observation.content, entry.result.error, entry.turn_ref) == ("hi", "error 1", calls[1].turn_id)
    assert failed.task_context.instructions == "Be helpful."
    claimed = whole(trajectory_end("run", outcome=Outcome(status="partial")), calls)
    assert claimed.outcome == Outcome(status="partial")
    bare = whole(trajectory_end("run"), [turn("run", messages=[], response=None, finish_reason="cancelled")])
    assert bare.metadata.error == "the agent gave the call up"
    odd = whole(trajectory_end("run"), [turn("run", messages=[{"role": 7}], response=None)])
    assert odd.metadata.error == "no call was answered (no_token_ids)"


def test_a_run_shows_its_outcome_where_nobody_reports_one() -> None:
    answered, failed = turn("run"), later(turn("run", 1, response=None, error="engine away"), 5)
    call = {"id": "c", "type": "function", "function": {"name": "submit", "arguments": "{}"}}
    handed = later(turn("run", 1, response={"role": "assistant", "content": None, "tool_calls": [call]}), 5)
    inference = Inference({"*": frozenset({"submit"}), "other": frozenset()})

    def outcome_of(turns: list[Turn], inference: Inference, role: str = "support") -> Outcome | None:
        return assemble_idle(role, answered.trajectory_id, Run(turns), inference).trajectories[0].outcome

    assert outcome_of([answered], inference) is None
    assert outcome_of([answered, failed], inference) == Outcome(status="failure", inferred_from="error")
    assert outcome_of([answered, failed], Inference(by_errors=False)) is None
    assert outcome_of([answered, handed], inference) == Outcome(status="success", inferred_from="submit")
    assert outcome_of([answered, handed], inference, "other") is None
    shown = assemble_idle("support", answered.trajectory_id, Run([answered, failed]), inference).trajectories[0]
    assert report_of(shown).is_provisional
    assert is_fuller(whole(trajectory_end("run"), [answered, failed]), report_of(shown))


@pytest.mark.parametrize("ends", [False, True], ids=["silent", "ended"])
@pytest.mark.parametrize(("fault", "outcome"), [("unserved", None), ("broke", "failure")])
def test_call_of_which_no_server_computed_anything_is_no_failure_of_policy(
    ends: bool, fault: str, outcome: str | None
) -> None:
    refused = later(
        turn("run", 1, response=None, error="provider refuses the gateway", engine=EngineInfo(name="p", fault=fault)), 5
    )
    for turns in ([refused], [turn("run"), refused]):
        end = trajectory_end("run", outcome=None)
        made = whole(end, turns) if ends else silent("support", refused.trajectory_id, turns)
        assert (made.outcome.status if made.outcome else None) == outcome
        assert made.metadata.error == "provider refuses the gateway" or len(turns) > 1


def test_what_a_trajectory_may_not_state_is_left_to_its_turns() -> None:
    """Agents sample at any temperature, and send an object as content."""
    hot = turn(
        "run", sampling=Sampling(temperature=5.0), messages=[{"role": "user", "content": {"type": "text", "text": "x"}}]
    )
    assembled = whole(trajectory_end("run"), [hot])
    CONTRACTS.check_strict(assembled)
    assert assembled.metadata.temperature is None
    assert assembled.turns[0].observation.content == [{"type": "text", "text": "x"}]


def test_a_conversation_that_cannot_be_read_holds_up_no_other() -> None:
    lost = asking("lost", 1, "and?", parent_turn_id=named_id("gone"))
    assembled = assemble(trajectory_end("run"), Run([turn("run"), later(turn("run", 1), 5), lost]))
    assert len(assembled.trajectories) == 1
    assert "is not there" in assembled.unreadable[0]

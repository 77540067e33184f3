"""A record of a file is a preference, or there is a sentence that says what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.core.contract import Preference, named_id
from ratchet.core.errors import Rejected
from ratchet.core.preferences.records import preference_of, record_of

PLAIN = {"prompt": "Where is it?", "chosen": "In the annex.", "rejected": "No idea."}


def test_persons_choice_names_better_answer_rater_and_how_sure_they_were() -> None:
    metadata = {"rater": "reviewer-7", "confidence": 0.8, "domain": "support", "shift": "night"}
    choice = {"prompt": "Where is it?", "a": "No idea.", "b": "In the annex.", "choice": "b", "metadata": metadata}
    preference = preference_of(choice, "helpdesk")
    assert (preference.chosen, preference.rejected) == ("In the annex.", "No idea.")
    assert (preference.source, preference.rater, preference.confidence, preference.domain) == (
        "human",
        "reviewer-7",
        0.8,
        "support",
    )
    assert (preference.role, preference.labels) == ("helpdesk", {"shift": "night"})


@pytest.mark.parametrize("choice", ["tie", "A", "", None, 1, "both"])
def test_any_other_label_than_a_or_b_is_rejected(choice: object) -> None:
    with pytest.raises(Rejected, match=r"choice must be a or b|has no choice"):
        preference_of({"prompt": "p", "a": "x", "b": "y", "choice": choice}, None)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ("text", "the record is not an object"),
        ({"prompt": "p", "chosen": "x"}, "has no rejected"),
        ({**PLAIN, "chosen": None}, "has no chosen"),
        ({**PLAIN, "rejected": PLAIN["chosen"]}, "chosen and rejected are the same"),
        ({**PLAIN, "rater": "me"}, "has the unknown members rater"),
        ({**PLAIN, "metadata": ["rater"]}, "metadata is not an object"),
        ({**PLAIN, "metadata": {"source": "guess"}}, "source must be one of human, teacher"),
        ({**PLAIN, "metadata": {"role": "sales"}}, "belongs to the role 'sales', not to 'support'"),
        ({**PLAIN, "metadata": {"confidence": "high"}}, "confidence"),
        ({**PLAIN, "prompt": 7}, "prompt"),
    ],
)
def test_a_refusal_names_what_is_wrong_with_a_record(record: Any, problem: str) -> None:
    with pytest.raises(Rejected, match=problem):
        preference_of(record, "support")


def test_the_source_label_is_preserved() -> None:
    for source in ("heuristic", "teacher", "rag", "derived"):
        assert preference_of({**PLAIN, "metadata": {"source": source}}, None).source == source


def test_the_same_words_of_the_same_rater_are_the_same_preference() -> None:
    first = preference_of({**PLAIN, "metadata": {"rater": "one"}}, "support")
    assert preference_of({**PLAIN, "metadata": {"rater": "one", "confidence": 0.5}}, "support").preference_id == (
        first.preference_id
    )
    others = [
        preference_of({**PLAIN, "metadata": {"rater": "two"}}, "support"),
        preference_of({**PLAIN, "metadata": {"rater": "one"}}, "sales"),
        preference_of({**PLAIN, "chosen": "Here.", "metadata": {"rater": "one"}}, "support"),
    ]
    assert len({first.preference_id, *(other.preference_id for other in others)}) == 4


def test_what_is_written_to_a_file_is_read_back_the_same() -> None:
    preference = Preference(
        preference_id=named_id("pair"),
        prompt=[{"role": "user", "content": "Where is it?"}],
        chosen=[{"role": "assistant", "content": "Here."}],
        rejected="No idea.",
        source="derived",
        role="support",
        rater="reward-margin",
        confidence=0.5,
        domain="retail",
        labels={"shift": "night"},
        tools=[{"type": "function", "function": {"name": "f"}}],
        chosen_trajectory_id=named_id("one"),
        rejected_trajectory_id=named_id("other"),
        group_key="task",
    )
    assert preference_of(record_of(preference), None) == preference


@pytest.mark.parametrize("nothing", ["", " \n", []])
@pytest.mark.parametrize("name", ["prompt", "chosen", "rejected", "a", "b"])
def test_an_empty_text_is_no_preference(name: str, nothing: object) -> None:
    choice = {"prompt": "p", "a": "x", "b": "y", "choice": "a"}
    record = (choice if name in choice and name != "prompt" else PLAIN) | {name: nothing}
    with pytest.raises(Rejected, match=rf"^{name} must not be empty$"):
        preference_of(record, None)

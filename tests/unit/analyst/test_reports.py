"""The weekly report: what changed, what it earned, what was taken back; nothing of a user's is markup in it."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from ratchet.analyst.domain.plan import ANALYST, stepped
from ratchet.analyst.domain.report import weekly_report
from ratchet.analyst.domain.trail import report_event, step_event, week_before
from ratchet.core.contract.learning import AdaptationPlan, ArmEffect
from ratchet.core.rules.reports import Report
from tests.support.adaptation import NOW, approved_plan, pattern_of

EFFECT = ArmEffect(difference=-0.3, low=-0.4, high=-0.2, stable=100, canary=100, at=NOW)


def ended(state: str, verdict: str) -> AdaptationPlan:
    plan = stepped(approved_plan(), "executing", NOW, ANALYST, policy="shop@2-abababab")
    return stepped(plan, state, NOW, ANALYST, effect=EFFECT, verdict=verdict)


def report() -> Report:
    kept, taken_back = ended("validated", "It helped."), ended("rolled_back", "It harmed.")
    old = replace(kept, history=tuple(replace(step, at=NOW - timedelta(days=8)) for step in kept.history))
    closed = pattern_of(
        pattern_id="2" * 32, state="closed", closed_at=NOW, closed_by="shop@2-abababab", statement="</li><b>`x` ended."
    )
    return weekly_report("shop", [pattern_of(), closed], [kept, taken_back, old], NOW + timedelta(hours=1))


def test_a_report_counts_what_ended_in_its_week() -> None:
    figures = report().figures
    assert (figures["plans_validated"], figures["plans_rolled_back"]) == (1, 1)
    assert (figures["plans_that_worked"], figures["plans_that_did_not"]) == (1, 1)
    assert (figures["patterns_open"], figures["patterns_closed"]) == (1, 1)


def test_a_report_states_what_was_earned_and_taken_back() -> None:
    text = report().markdown()
    assert "better by 0.3 a trajectory that matches, between 0.2 and 0.4" in text
    assert text.index("What was taken back") < text.index("It harmed.") < text.index("What was not tried")
    assert "it ended with shop@2-abababab" in text


def test_no_words_of_users_are_markup_in_a_report() -> None:
    page = report()
    assert "<b>" not in page.html()
    assert "<b>" not in page.markdown()
    assert "- `‹/li›‹b›'x' ended.; it ended with shop@2-abababab`" in page.markdown()


def test_a_note_stands_not_under_what_changed() -> None:
    note = stepped(replace(approved_plan(), policy=None), "executing", NOW, ANALYST)
    page = weekly_report("shop", [], [stepped(note, "validated", NOW, ANALYST)], NOW + timedelta(hours=1))
    assert "Nothing was changed." in page.markdown()
    assert page.figures["plans_validated"] == 0


def test_a_dismissed_pattern_has_not_closed() -> None:
    dismissed = pattern_of(state="dismissed", closed_at=NOW, closed_by="ann", reason="we know")
    page = weekly_report("shop", [dismissed], [], NOW + timedelta(hours=1))
    assert page.figures["patterns_closed"] == 0
    assert "None closed." in page.markdown()
    assert "; by ann: we know" in page.markdown()


def test_a_report_of_an_earlier_week_is_of_what_was_open_then() -> None:
    later = pattern_of(opened_at=NOW + timedelta(days=3))
    assert weekly_report("shop", [later], [], NOW).figures["patterns_open"] == 0
    assert weekly_report("shop", [later], [], NOW + timedelta(days=4)).figures["patterns_open"] == 1


def test_a_reason_that_was_stored_raw_is_redacted_in_report_and_trail() -> None:
    raw = f"\x1b[2J\u202e {{{{x}}}} alice@example.com \x00{'y' * 5_000}"
    plan = stepped(approved_plan(), "rejected", NOW, "ann (key_a)", raw)
    pattern = pattern_of(state="closed", closed_at=NOW, statement=raw, closed_by=raw)
    page = weekly_report("shop", [pattern, pattern_of(statement=raw)], [plan], NOW + timedelta(hours=1))
    shown = (page.markdown(), page.html(), step_event(plan, len(plan.history) - 1).summary)
    for text in shown:
        assert "alice" not in text
        assert text.replace("\n", "").isprintable()
        assert max(map(len, text.splitlines())) < 1_500


def test_an_empty_week_has_a_report() -> None:
    empty = weekly_report("shop", [], [], NOW)
    assert "Nothing was changed." in empty.markdown()
    assert "<p>Nothing was changed.</p>" in empty.html()


def test_a_week_ends_on_monday() -> None:
    week, end = week_before(NOW)
    assert (week, f"{end:%Y-%m-%d %H:%M %a}") == ("2026-W09", "2026-03-02 00:00 Mon")


def test_a_report_is_one_step_of_the_trail_a_week() -> None:
    assert report_event(report(), "shop", "2026-W09").event_id == report_event(report(), "shop", "2026-W09").event_id


def test_each_step_of_a_plan_is_a_step_of_the_trail() -> None:
    plan = ended("validated", "It helped.")
    steps = [step_event(plan, n) for n in range(len(plan.history))]
    assert [(step.phase, step.what) for step in steps] == [
        ("adaptation", "plan_draft"),
        ("adaptation", "plan_approved"),
        ("validation", "plan_executing"),
        ("deployment", "plan_validated"),
    ]
    assert len({step.event_id for step in steps}) == 4
    assert steps[-1].facts["difference"] == -0.3

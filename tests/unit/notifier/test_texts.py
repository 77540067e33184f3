"""Texts of alerts as people read them: plain and bounded, whatever stands in them."""

from __future__ import annotations

from datetime import UTC, datetime

from ratchet.core.contract import named_id
from ratchet.core.contract.notifications import Notification, NotifiedAlert, SentReport
from ratchet.notifier.domain.texts import LONGEST, LONGEST_BODY, body_of, plain, title_of, unmarked

NOW = datetime(2026, 3, 2, 15, tzinfo=UTC)


def notification(*summaries: str, state: str = "firing", more: int = 0) -> Notification:
    alerts = [
        NotifiedAlert(
            state=state,
            key=text,
            alert_id=named_id(text),
            severity="critical",
            summary=text,
            source="collector",
            at=NOW,
        )
        for text in summaries
    ]
    return Notification(type=Notification.TYPE, timestamp=NOW, receiver="team", alerts=alerts, more=more)


def test_hostile_text_becomes_one_plain_line() -> None:
    hostile = "a\x1b[31mred\x00\r\nX-Injected: 1\u202egnp.exe\u200b\ud800 b" + "x" * 10_000
    line = plain(hostile)
    assert line.startswith("a [31mred X-Injected: 1 gnp.exe b")
    assert len(line) == LONGEST
    assert line.isprintable()


def test_text_of_which_nothing_can_be_seen_is_not_empty() -> None:
    assert plain(" \u200b\n") == "-"


def test_mentions_links_and_mark_up_are_taken_out_of_messages() -> None:
    text = unmarked("<!channel> @everyone [click](http://x) `rm` *bold* _it_ |")
    assert not set("<>@[]`*_|") & set(text)
    assert "everyone" in text


def test_a_title_names_the_alert_or_counts_them() -> None:
    assert title_of(notification("the disk is full")) == "critical: the disk is full"
    assert title_of(notification("the disk is full", state="resolved")) == "resolved: the disk is full"
    assert title_of(notification("a", "b", more=8)) == "10 alerts, 2 of them critical"
    assert title_of(notification("a", "b", state="resolved")) == "2 alerts resolved"


def test_a_body_has_as_many_lines_as_fit_and_counts_the_others() -> None:
    body = body_of(notification(*(f"{number} " + "y" * 290 for number in range(100)), more=900))
    lines = body.splitlines()
    assert len(body) < LONGEST_BODY + 100
    assert lines[-1] == f"... and {1000 - (len(lines) - 1)} more: see 'ratchet alerts'".replace("'", "`")


def test_report_in_a_chat_is_its_lines_without_marks_as_many_as_fit() -> None:
    lines = "\n".join(f"- `line {number} of <@everyone>`" for number in range(200))
    markdown = f"# A day\n\n## Issues\n\n{lines}\n"
    report = SentReport(kind="daily", title="A day", since=NOW, until=NOW, markdown=markdown, html="<p>")
    sent = Notification(type=Notification.REPORT, timestamp=NOW, receiver="team", alerts=[], report=report)
    body = body_of(sent)
    assert title_of(sent) == "A day"
    assert body.startswith("Issues\n- line 0 of ‹＠everyone›\n")
    assert body.endswith("more lines: see `ratchet report`")
    assert len(body) < LONGEST_BODY + 100

"""Takes records of preferences in: redacted, each once; what cannot be taken is named by its line."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from ratchet.core.contract import Preference
from ratchet.core.errors import Rejected
from ratchet.core.preferences.publishing import Known, Published, Sink, publish
from ratchet.core.preferences.records import Line, preference_of
from ratchet.core.rules.redaction import redact_message


@dataclass(frozen=True, slots=True)
class BadLine:
    """A record that was left out."""

    line: int
    reason: str


@dataclass
class AddReport:
    """The fate of the records."""

    records: int = 0
    done: Published = field(default_factory=Published)
    bad: list[BadLine] = field(default_factory=list[BadLine])


async def add_lines(sink: Sink, stored: Known, lines: Iterable[Line], role: str | None) -> AddReport:
    """Publish the good ones among the records. `role`: see `preference_of`. Raises `BusUnavailable`."""
    report = AddReport()
    good = await asyncio.to_thread(_good, lines, role, report)
    await publish(sink, stored, [preference for _, preference in good.values()], report.done)
    report.bad += [BadLine(good[refused.preference_id][0], refused.reason) for refused in report.done.refused]
    report.bad.sort(key=lambda bad: bad.line)
    return report


def _good(lines: Iterable[Line], role: str | None, report: AddReport) -> dict[str, tuple[int, Preference]]:
    """By id: the first line that has it, and the preference, redacted."""
    good: dict[str, tuple[int, Preference]] = {}
    for line in lines:
        report.records += 1
        try:
            if line.problem is not None:
                raise Rejected(line.problem)
            preference, _ = redact_message(preference_of(line.record, role))
        except Rejected as error:
            report.bad.append(BadLine(line.number, str(error)))
        else:
            good.setdefault(preference.preference_id, (line.number, preference))
    return good

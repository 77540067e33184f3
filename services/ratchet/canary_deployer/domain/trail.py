"""What the e-values of a rollout were, between its decisions too: a bounded number of moments, evenly spread. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec.structs import replace

MOST = 240
"""Moments that are kept. One more, and the one with the closest neighbours goes."""
LEAST_MS = 2_000
"""Moments are at least this far from each other."""


class Trail(msgspec.Struct, frozen=True, omit_defaults=True):
    """Columns, which take a fifth of the room that a map for each moment takes."""

    names: tuple[tuple[str, str], ...] = ()
    """Family and metric of each value."""
    at: tuple[int, ...] = ()
    """Milliseconds of Unix time."""
    values: tuple[tuple[float, ...], ...] = ()

    def sampled(self, now: datetime, e_values: Mapping[str, Mapping[str, float]]) -> Trail:
        """The trail with the present values; itself where they are as before, or it is too early for another moment."""
        names = tuple((family, metric) for family, values in e_values.items() for metric in values)
        if names != self.names:  # the first moment, or a deployer with other metrics
            return Trail(names=names).sampled(now, e_values)
        at, row = round(now.timestamp() * 1000), tuple(e_values[family][metric] for family, metric in names)
        if self.at and (at - self.at[-1] < LEAST_MS or row == self.values[-1]):
            return self
        times, rows = [*self.at, at], [*self.values, row]
        if len(times) > MOST:
            # Never the first or the newest: moments stay evenly spread, however long a pause was.
            crowded = min(range(1, len(times) - 1), key=lambda place: times[place + 1] - times[place - 1])
            del times[crowded], rows[crowded]
        return replace(self, at=tuple(times), values=tuple(rows))

    def samples(self) -> Iterator[tuple[datetime, dict[str, dict[str, float]]]]:
        """Every moment and its values."""
        for at, row in zip(self.at, self.values, strict=True):
            values: dict[str, dict[str, float]] = {}
            for (family, metric), value in zip(self.names, row, strict=True):
                values.setdefault(family, {})[metric] = value
            yield datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=at), values

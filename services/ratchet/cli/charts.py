"""Curves as pictures of characters, for a terminal: braille dots, or plain ASCII where it has none. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ratchet.core.rules.curves import Point

BRAILLE = 0x2800
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot of a braille character, by its row and column."""
NO_BRAILLE = frozenset({"dumb", "linux"})
"""Terminals (`TERM`) whose fonts have no braille."""
ROWS = 5
"""Lines of a picture."""
LEAST_COLUMNS = 12
"""A picture that is narrower shows nothing."""


@dataclass(slots=True)
class Canvas:
    """A grid of dots in which lines are drawn. `across` and `down`: dots of one character."""

    columns: int
    rows: int
    across: int = 1
    down: int = 1
    dots: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])

    @property
    def width(self) -> int:
        """In dots."""
        return self.columns * self.across

    @property
    def height(self) -> int:
        """In dots."""
        return self.rows * self.down

    def line(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Set the dots between two of them."""
        (left, top), (right, bottom) = start, end
        count = max(abs(right - left), abs(bottom - top), 1)
        for step in range(count + 1):
            x, y = left + (right - left) * step / count, top + (bottom - top) * step / count
            self.dots.add((round(x), round(y)))

    def lines(self) -> Iterator[str]:
        """The rows as text."""
        for row in range(self.rows):
            yield "".join(self._character(row, column) for column in range(self.columns))

    def _character(self, row: int, column: int) -> str:
        if self.down == 1:
            return "*" if (column, row) in self.dots else " "
        bits = 0
        for y, places in enumerate(DOTS):
            for x, bit in enumerate(places):
                if (column * self.across + x, row * self.down + y) in self.dots:
                    bits |= bit
        return chr(BRAILLE + bits) if bits else " "


def picture(points: Sequence[Point], columns: int, *, braille: bool, rows: int = ROWS) -> list[str]:
    """A curve, `columns` wide: its rows with the greatest and the least value beside them, and its steps below."""
    values, steps = [point.value for point in points], [point.step for point in points]
    least, most = min(values), max(values)
    labels = [f"{most:.4g}", *[""] * (rows - 2), f"{least:.4g}"]
    margin = max(map(len, labels))
    axis = "\u2502" if braille else "|"
    width = max(columns - margin - 2, LEAST_COLUMNS)
    canvas = Canvas(width, rows, 2, 4) if braille else Canvas(width, rows)
    places = [*_places(points, canvas)]
    for start, end in zip(places, places[1:] or places, strict=False):
        canvas.line(start, end)
    drawn = [f"{label:>{margin}} {axis}{row}".rstrip() for label, row in zip(labels, canvas.lines(), strict=True)]
    first, last = f"step {min(steps)}", str(max(steps))
    below = first if min(steps) == max(steps) else first + last.rjust(max(width - len(first), len(last) + 1))
    return [*drawn, " " * (margin + 2) + below]


def thinned(points: Sequence[Point], width: int) -> list[Point]:
    """At most four points of each of `width` parts of a curve: the first, the least, the greatest and the last."""
    parts: dict[int, list[Point]] = {}
    for point, place in zip(points, placed([point.step for point in points], width), strict=True):
        parts.setdefault(place, []).append(point)
    kept: list[Point] = []
    for part in parts.values():
        extremes = {min(part, key=_value), max(part, key=_value), part[0], part[-1]}
        kept += [point for point in dict.fromkeys(part) if point in extremes]
    return kept


def placed(values: Sequence[float], size: int) -> Iterator[int]:
    """Where each value lies between the least (0) and the greatest (`size` - 1); in the middle where all are equal."""
    least, most = min(values) / 2, max(values) / 2  # halves, for the whole difference may be beyond every float
    for value in values:
        yield round((value / 2 - least) / (most - least) * (size - 1)) if most > least else (size - 1) // 2


def shows_braille(encoding: str, environment: Mapping[str, str]) -> bool:
    """Whether a terminal of this encoding and environment shows braille dots."""
    named = (environment.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    locale = next((name for name in named if name), "")
    plain = locale.split(".")[0] in ("C", "POSIX") and "." not in locale
    return encoding.lower().startswith("utf") and environment.get("TERM") not in NO_BRAILLE and not plain


def _places(points: Sequence[Point], canvas: Canvas) -> Iterator[tuple[int, int]]:
    few = thinned(points, canvas.width)
    across = placed([point.step for point in few], canvas.width)
    up = placed([point.value for point in few], canvas.height)
    for x, y in zip(across, up, strict=True):
        yield x, canvas.height - 1 - y


def _value(point: Point) -> float:
    return point.value

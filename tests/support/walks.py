"""The walks of docs/architecture.md, and a trace of the functions that a run of the real code calls."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import ratchet

PAGE = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
CODE = str(Path(ratchet.__file__).parent)
_STEP = re.compile(r"^\| (\d+) \| `([\w.]+)` \|", re.MULTILINE)


def walk(title: str) -> list[str]:
    """The functions of one walk, in order: `client.trajectory.TrajectoryRecorder.end`."""
    _, heading, rest = PAGE.read_text().partition(f"### {title}\n")
    assert heading, f"{PAGE.name} has no walk {title!r}"
    steps = _STEP.findall(rest.partition("\n## ")[0].partition("\n### ")[0])
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    return [function for _, function in steps]


@contextmanager
def traced() -> Iterator[list[str]]:
    """Every function of Ratchet that is called or goes on, in order, also on threads that start meanwhile."""
    calls: list[str] = []
    names: dict[CodeType, str | None] = {}

    def name_of(frame: FrameType) -> str | None:
        code = frame.f_code
        if not code.co_filename.startswith(CODE):
            return None
        module = frame.f_globals["__name__"].removeprefix("ratchet.")
        return f"{module}.{code.co_qualname}".replace(".<locals>", "")

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        if frame.f_code not in names:
            names[frame.f_code] = name_of(frame)
        name = names[frame.f_code]
        if name is not None:
            calls.append(name)

    before = sys.getprofile()
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def first_missing(steps: Sequence[str], calls: Sequence[str]) -> str | None:
    """The first step that was not called after the one before it; None when the calls go through all of them."""
    place = 0
    for step in steps:
        try:
            place = calls.index(step, place) + 1
        except ValueError:
            return step
    return None

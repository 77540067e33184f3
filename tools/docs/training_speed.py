"""docs/training-speed.md, from what `make bench-train` measured: `python -m tools.docs.training_speed` writes it.

With `--check` it exits with 1 where the page or a picture is not what the results say.
"""

from __future__ import annotations

import html
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

PAGE, FOLDER = Path("docs", "training-speed.md"), Path("docs", "training-speed")
RESULTS = FOLDER / "results.json"
RATCHET, COMPARED = "ratchet", "compared"
FLOOR_SHARED, FLOOR_APART = 1.5, 1.2
"""Trained tokens a second beside the other ways, with a common beginning and without."""
FLOOR_MEMORY = 1.0
"""Peak memory beside theirs, at most."""
GROWTH = {"trajectories": "trajectories in a train step", "context": "tokens of the longest trajectory"}
WIDTH, HEIGHT = 560, 220
COLORS = ("#2a6fdb", "#c2571a", "#2e8b57")
COMMAND = 'make bench-train ARGS="--scale 0.0625 --growth --json docs/training-speed/results.json"'

INTRODUCTION = """# Speed of training

<!-- Written by `python -m tools.docs.training_speed`. -->

What a train step of Ratchet takes beside TRL's: the same model, rows and machine, all ways in turns, each in a process
of its own. Trajectories have the lengths of an airline agent's (tau-bench), scaled. TRL takes them in one padded batch,
or in micro-batches of like length. Time is of one processor, so that other work on the machine changes little; memory
is what a process' peak adds to its start. The machine was shared and busy: compare ratios, not absolute figures. Times
contain what the system takes to give a process its memory, which costs the ways that take more of it.

{model}, one thread, on a CPU; {versions}.
Nothing here was measured on a GPU.

```sh
{command}
python -m tools.docs.training_speed
```

The first command adds what the file does not have yet; with `--floors` it exits with 1 where a floor is missed. Floors:
{floors} where they do not, never more memory.
{held}

## Compared
"""


class Compared(msgspec.Struct, frozen=True):
    """One way in all rounds of a case."""

    algorithm: str
    way: str
    seconds: list[float]
    """Of the processor for a train step, round by round."""
    peak_mib: list[float]


class Floor(msgspec.Struct, frozen=True):
    """A target of a comparison."""

    what: str
    ratio: float
    bound: float
    holds: bool


class Result(msgspec.Struct, frozen=True):
    """What was measured of a case."""

    kind: str
    """`compared`, or what grows: one of `GROWTH`."""
    tasks: int
    scale: float
    """Of the real lengths."""
    shared: bool
    """All trajectories begin with the same tokens."""
    rows: int
    shortest: int
    longest: int
    tokens: int
    trained: int
    """Those of the tokens that learn."""
    ways: list[Compared]

    @property
    def key(self) -> tuple[object, ...]:
        """What names the case."""
        return self.kind, self.tasks, self.scale, self.shared

    def own(self, algorithm: str) -> Compared:
        """Ratchet's way."""
        return next(compared for compared in self.ways if compared.way == RATCHET and compared.algorithm == algorithm)

    def ratios(self, other: Compared) -> list[float]:
        """How many times as fast Ratchet is, round by round, from the least on."""
        ours = self.own(other.algorithm).seconds
        return sorted(theirs / own for theirs, own in zip(other.seconds, ours, strict=True))

    def floors(self) -> Iterator[Floor]:
        """Of Ratchet beside each other way."""
        least = FLOOR_SHARED if self.shared else FLOOR_APART
        for other in (compared for compared in self.ways if compared.way != RATCHET):
            speed = statistics.median(self.ratios(other))
            yield Floor(f"speed beside {other.way}", speed, least, speed >= least)
            own = self.own(other.algorithm)
            memory = statistics.median(own.peak_mib) / statistics.median(other.peak_mib)
            yield Floor(f"memory beside {other.way}", memory, FLOOR_MEMORY, memory <= FLOOR_MEMORY)


class Report(msgspec.Struct, frozen=True):
    """All that was measured, and of what."""

    model: str
    versions: dict[str, str]
    results: list[Result]

    def missed(self) -> list[str]:
        """The floors of the comparison that do not hold."""
        return [
            f"{floor.what}, {_beginnings(result)}: {floor.ratio:.2f} ({_bound(floor)})"
            for result in self.results
            if result.kind == COMPARED
            for floor in result.floors()
            if not floor.holds
        ]


def table(result: Result) -> Iterator[str]:
    """A result in Markdown."""
    yield (
        f"{result.rows} trajectories of {result.shortest} to {result.longest} tokens, {result.tokens} in all, "
        f"{result.trained} of them learn, {_beginnings(result)}"
    )
    yield ""
    yield "| algorithm | way | trained tokens/s | Ratchet is faster by (all rounds) | peak MiB |"
    yield "|---|---|---|---|---|"
    for compared in result.ways:
        ratios = result.ratios(compared)
        spread = (
            "" if compared.way == RATCHET else f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        )
        speed, peak = result.trained / statistics.median(compared.seconds), statistics.median(compared.peak_mib)
        yield f"| {compared.algorithm} | {compared.way} | {speed:.0f} | {spread} | {peak:.0f} |"


def page(report: Report) -> str:
    """The page."""
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    missed = report.missed()
    held = "All floors hold." if not missed else "These floors are missed: " + "; ".join(missed) + "."
    floors = f"{FLOOR_SHARED} times TRL's trained tokens a second where trajectories begin alike, {FLOOR_APART} times"
    parts = [INTRODUCTION.format(model=report.model, versions=versions, command=COMMAND, floors=floors, held=held)]
    for result in report.results:
        if result.kind == COMPARED:
            parts += [*table(result), ""]
    grown = {kind: [result for result in report.results if result.kind == kind] for kind in GROWTH}
    if any(grown.values()):
        parts += [
            "## Growth\n",
            "One round each; all trajectories begin alike. Sizes that are missing were not measured.\n",
        ]
    for name in pictures(report):
        kind, _, algorithm = Path(name).stem.partition("-")
        title = f"Trained tokens a second by {GROWTH[kind]}: {algorithm.replace('-', ' ')}"
        parts += [f"![{title}]({FOLDER.name}/{name})\n"]
    for kind, results in grown.items():
        if results:
            parts += [*growth_table(kind, results), ""]
    return "\n".join(parts).rstrip() + "\n"


def growth_table(kind: str, results: Sequence[Result]) -> Iterator[str]:
    """Trained tokens a second and MiB of every way."""
    ways = [(compared.algorithm, compared.way) for compared in results[0].ways]
    yield f"| {GROWTH[kind]} | " + " | ".join(f"{algorithm}: {way}" for algorithm, way in ways) + " |"
    yield "|---" * (len(ways) + 1) + "|"
    for result in results:
        cells = [
            f"{result.trained / statistics.median(compared.seconds):.0f}/s,"
            f" {statistics.median(compared.peak_mib):.0f} MiB"
            for compared in result.ways
        ]
        yield f"| {_size(result)} | " + " | ".join(cells) + " |"


def pictures(report: Report) -> Mapping[str, str]:
    """The drawings by name: one of each algorithm for everything that grows."""
    drawn: dict[str, str] = {}
    for kind, what in GROWTH.items():
        results = [result for result in report.results if result.kind == kind]
        for algorithm in dict.fromkeys(compared.algorithm for result in results for compared in result.ways):
            curves = {
                compared.way: [
                    result.trained / statistics.median(other.seconds)
                    for result in results
                    for other in result.ways
                    if (other.algorithm, other.way) == (algorithm, compared.way)
                ]
                for compared in results[0].ways
                if compared.algorithm == algorithm
            }
            drawn[f"{kind}-{algorithm.replace(' ', '-')}.svg"] = drawing([*map(_size, results)], curves, what)
    return drawn


def drawing(sizes: Sequence[int], curves: Mapping[str, Sequence[float]], what: str) -> str:
    """Curves over sizes, from zero up, each with its name."""
    most = max(max(curve) for curve in curves.values())
    across = [*placed(sizes, WIDTH)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-8 -22 {WIDTH + 16} {HEIGHT + 64}" '
        'font-family="sans-serif" font-size="12" fill="#808080">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#808080" stroke-opacity=".4"/>',
        f'<text y="-8">{most:.0f} trained tokens/s</text>',
    ]
    for x, size in zip(across, sizes, strict=True):
        anchor = "start" if x == 0 else "end" if x == WIDTH - 1 else "middle"
        parts.append(f'<text x="{x}" y="{HEIGHT + 16}" text-anchor="{anchor}">{size}</text>')
    parts.append(f'<text x="{WIDTH}" y="-8" text-anchor="end">by {html.escape(what)}</text>')
    for number, (way, curve) in enumerate(curves.items()):
        # Beside zero and the greatest of all curves, so that they share one scale.
        up = [*placed([0.0, most, *curve], HEIGHT)][2:]
        points = " ".join(f"{x},{HEIGHT - 1 - y}" for x, y in zip(across, up, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLORS[number]}" stroke-width="2"/>')
        name = f'<text x="{number * WIDTH // 3}" y="{HEIGHT + 36}" fill="{COLORS[number]}">{html.escape(way)}</text>'
        parts.append(name)
    return "\n".join([*parts, "</svg>\n"])


def read_report(path: Path) -> Report:
    """What was measured."""
    return msgspec.json.decode(path.read_bytes(), type=Report)


def written_report(report: Report) -> bytes:
    """What `read_report` reads, a case a line."""
    return msgspec.json.encode(report).replace(b'{"kind"', b'\n{"kind"') + b"\n"


def documents(root: Path) -> dict[Path, str]:
    """The page and its pictures, as the results in `root` make them."""
    report = read_report(root / RESULTS)
    return {PAGE: page(report)} | {FOLDER / name: text for name, text in pictures(report).items()}


def _size(result: Result) -> int:
    return result.rows if result.kind == "trajectories" else result.longest


def _beginnings(result: Result) -> str:
    return "one beginning" if result.shared else "no common beginning"


def _bound(floor: Floor) -> str:
    return f"at most {floor.bound}" if floor.bound == FLOOR_MEMORY else f"at least {floor.bound}"


def placed(values: Sequence[float], size: int) -> Iterator[int]:
    """Where each value lies between the least (0) and the greatest (`size` - 1); in the middle where all are equal."""
    least, most = min(values), max(values)
    for value in values:
        yield round((value - least) / (most - least) * (size - 1)) if most > least else (size - 1) // 2


def main(arguments: Sequence[str]) -> int:
    made = documents(Path())
    if "--check" in arguments:
        stale = [str(path) for path, text in made.items() if not path.is_file() or path.read_text() != text]
        sys.stdout.write("".join(f"{path} is not what {RESULTS} says\n" for path in stale))
        return 1 if stale else 0
    for path, text in made.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

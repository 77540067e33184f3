"""One self-contained page about a job: facts, attempts, a plot of every curve and every figure. Pure.

Whatever stands in a job is text here: the page has no script, and its policy lets a browser load nothing.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence

from ratchet.cli.charts import placed, thinned
from ratchet.cli.jobs import attempt_table, facts_of, figures_of, sentence_of
from ratchet.cli.output import cell, flat
from ratchet.core.contract.http.jobs import JobOut
from ratchet.core.rules.curves import Point, curves_of
from ratchet.core.rules.figures import FIGURES
from ratchet.core.stores.training_history import TrainingHistory

WIDTH, HEIGHT = 560, 160
"""Of a plot, in its own units."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
table { border-collapse: collapse; }
td, th { padding: .2rem .9rem .2rem 0; text-align: left; vertical-align: top; overflow-wrap: anywhere; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(22rem, 1fr)); gap: 1.5rem; }
figure { margin: 0; }
figcaption { font-weight: 600; }
figure p { margin: .2rem 0; font-size: .85em; opacity: .8; }
svg { width: 100%; height: auto; }
polyline { fill: none; stroke: #2a6fdb; stroke-width: 1.5; vector-effect: non-scaling-stroke; }
rect { fill: none; stroke: currentColor; stroke-opacity: .25; }
text { font-size: 11px; fill: currentColor; }
"""


def job_page(job: JobOut, history: TrainingHistory) -> str:
    """The page."""
    title = _text(f"{job.algorithm} of {job.role}: {job.training_job_id}")
    known = list(flat(facts_of(job)))
    measured = [(name, value, sentence_of(name, value)) for name, value in figures_of(job).items()]
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>",
        *_table((), known),
    ]
    if history.attempts:
        parts += ["<h2>Attempts</h2>", *_table(*attempt_table(history.attempts))]
    parts += ["<h2>Curves</h2>", *_plots(curves_of(history.steps))]
    if measured:
        parts += ["<h2>Figures</h2>", *_table(("figure", "value", "what it is"), measured)]
    return "\n".join([*parts, "</body>\n</html>\n"])


def _plots(curves: Mapping[str, Sequence[Point]]) -> Iterator[str]:
    if not curves:
        yield "<p>No train step has been measured, or its figures cannot be read any more.</p>"
        return
    known = [name for name in FIGURES if name in curves]
    yield '<div class="plots">'
    for name in (*known, *sorted(curves.keys() - FIGURES.keys())):
        figure = FIGURES.get(name)
        sentence = f"<p>{_text(figure.sentence)}</p>" if figure else ""
        yield f"<figure><figcaption>{_text(name)}</figcaption>{_plot(curves[name])}{sentence}</figure>"
    yield "</div>"


def _plot(curve: Sequence[Point]) -> str:
    few = thinned(curve, WIDTH)
    across, up = placed([point.step for point in few], WIDTH), placed([point.value for point in few], HEIGHT)
    points = " ".join(f"{x},{HEIGHT - 1 - y}" for x, y in zip(across, up, strict=True))
    values, last = [point.value for point in curve], curve[-1]
    dot = points.rsplit(" ", 1)[-1].split(",")
    return (
        f'<svg viewBox="-4 -16 {WIDTH + 8} {HEIGHT + 36}" role="img">'
        f'<rect width="{WIDTH}" height="{HEIGHT}"/><polyline points="{points}"/>'
        f'<circle cx="{dot[0]}" cy="{dot[1]}" r="3" fill="#2a6fdb"/>'
        f'<text y="-4">{max(values):.4g}</text><text y="{HEIGHT + 14}">{min(values):.4g}, step {curve[0].step}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT + 14}" text-anchor="end">step {last.step}: {last.value:.4g}</text></svg>'
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield "<table>"
    if columns:
        yield f"<tr>{''.join(f'<th>{_text(column)}</th>' for column in columns)}</tr>"
    for row in rows:
        yield f"<tr>{''.join(f'<td>{_text(value)}</td>' for value in row)}</tr>"
    yield "</table>"


def _text(value: object) -> str:
    """A value as HTML shows it, looking as it does in a terminal's table."""
    return html.escape(cell(value).plain)

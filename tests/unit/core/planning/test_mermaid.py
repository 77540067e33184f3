"""A plan as a Mermaid flowchart."""

from __future__ import annotations

from ratchet.core.contract.workflows import Plan, SubTask
from ratchet.core.planning.mermaid import LABEL_CHARACTERS, Standing, mermaid
from tests.support.executions import PLAN, run_of


def test_nodes_and_edges_are_those_of_the_plan() -> None:
    drawn = mermaid(
        PLAN,
        [
            Standing("succeeded", "good", run_of("good")),
            Standing("failed", "cheap", run_of(status="failed")),
            Standing("running", "quick"),
        ],
    )
    assert drawn.splitlines() == [
        "flowchart TD",
        '  t0["1. text_extraction<br/>read the file<br/>good (p 0.20): succeeded, $0.0100, 120 ms"]:::succeeded',
        '  t1["2. analysis<br/>compare the years<br/>cheap (p 0.70): failed, $0.0100, 120 ms"]:::failed',
        '  t2["3. summarization<br/>write it up<br/>quick: running"]:::running',
        "  t0 --> t2",
        "  t1 --> t2",
        "  classDef succeeded fill:#d7f0dd,stroke:#2f7d46,color:#10331c",
        "  classDef failed fill:#f8d7d7,stroke:#a33333,color:#4a1212",
        "  classDef running fill:#d6e6fa,stroke:#2d62a3,color:#122c4d",
    ]


def test_an_instruction_cannot_become_markup() -> None:
    hostile = Plan(
        sub_tasks=(SubTask(task_type="code", instruction='"] --> x[<script>&\n' + "z" * 999),), made_by="single"
    )
    drawn = mermaid(hostile, [Standing("waiting")])
    assert len(drawn.splitlines()) == 2
    assert drawn.count('"') == 2
    assert not any(mark in drawn for mark in ("<script", "&", "-->"))
    assert drawn.count("z") < LABEL_CHARACTERS

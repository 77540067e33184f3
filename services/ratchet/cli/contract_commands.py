"""`ratchet contract`: the messages, and what a changed schema would do to those that are there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.options import AsJson, Directory
from ratchet.service.discovery import DEFAULT_DIRECTORY

app = typer.Typer(help="The messages, and what a changed schema would do.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """The messages, and what a changed schema would do."""


@app.command("list")
def list_topics(as_json: AsJson = False) -> None:
    """List every topic with its stream, who sends it and who reads it."""
    from ratchet.cli.output import print_json, print_table
    from ratchet.service.contracts import load_contracts

    topics = load_contracts().topics.values()
    if as_json:
        print_json({"topics": list(topics)})
        return
    rows = [(t.name, t.stream, ", ".join(t.producers), ", ".join(t.consumers), t.description) for t in topics]
    print_table(("topic", "stream", "from", "to", "what"), rows, "no topics")


@app.command()
def show(
    topic: Annotated[str, typer.Argument(help="A topic, with or without `agent.rl.`, or a subject.")],
    as_json: AsJson = False,
) -> None:
    """Show one topic: its subjects, its schema and its shortest valid example."""
    import json

    from ratchet.bus.contracts import load_schema
    from ratchet.cli.output import print_facts, print_json
    from ratchet.resources import resource_dir
    from ratchet.service.contracts import load_contracts

    contracts, root = load_contracts(), resource_dir("contracts")
    name = topic if topic.startswith("agent.rl.") else f"agent.rl.{topic}"
    found = contracts.topics.get(name) or contracts.topic_of(name)
    schema = load_schema(root, found.schema)
    example = json.loads((root / "examples" / found.schema / "valid" / "minimal.json").read_text())
    if as_json:
        print_json({"topic": found, "schema": schema, "example": example})
        return
    facts = ("subjects", "stream", "producers", "consumers")
    print_facts({name: ", ".join(v) if isinstance(v := getattr(found, name), tuple) else v for name in facts})
    print_json(schema)
    print_json(example)


@app.command()
def check(
    schema: Annotated[Path, typer.Argument(help="A JSON Schema: the proposed contract of one topic.")],
    subject: Annotated[str | None, typer.Option(help="A subject of the topic, when $id does not say it.")] = None,
    days: Annotated[float, typer.Option(min=0.001, help="How far back the stream is read.")] = 7.0,
    most: Annotated[int, typer.Option(min=0, help="Most failing messages that are listed; all are counted.")] = 20,
    as_json: AsJson = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Replay the live stream against a proposed schema. Exit code 3: some messages would fail, the first are listed.

    Whether the change may be made within the major version is said too; it does not change the exit code.
    """
    import asyncio

    from ratchet.cli import contract_check as checking
    from ratchet.cli.endpoints import locate
    from ratchet.cli.output import console, print_json, print_table, progress

    proposal = checking.read_proposal(schema, subject)
    verdict = checking.compatibility(proposal)
    with progress(f"reading {proposal.topic.stream}", quiet=as_json) as bar:
        findings = asyncio.run(checking.replay(locate(directory).shared, proposal, days, most, bar))
    if as_json:
        compatible = {"compatible": verdict.compatible, "changes": verdict.changes, "examples": verdict.examples}
        print_json({"topic": proposal.topic.name, "days": days, "compatibility": compatible, "replay": findings})
    else:
        for line in checking.lines(findings, verdict, days):
            console.print(line, markup=False)
        columns = ("sequence", "role", "event", "view", "path", "reason")
        rows = [(f.sequence, f.role, f.event_id, f.view, f.path or "/", f.reason) for f in findings.failures]
        if rows:
            print_table(columns, rows, "")
    raise typer.Exit(ExitCode.PARTLY if findings.failed else ExitCode.DONE)

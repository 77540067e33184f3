"""`ratchet contract`: messages and stored values, and the effect of a changed schema on the messages of a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ratchet.bus.clock import utc_now
from ratchet.bus.compatibility import Break, breaks
from ratchet.bus.contracts import Contracts
from ratchet.bus.envelope import unseal
from ratchet.bus.registry import Topic
from ratchet.bus.schemas import Breach, Json, Schema, load_schema, parse, with_references
from ratchet.cli.connections import connected, reader, settings_of
from ratchet.cli.endpoints import locate
from ratchet.cli.exit_codes import ExitCode
from ratchet.cli.interfaces import Interface, asyncapi as asyncapi_document, openapi as openapi_document
from ratchet.cli.options import HERE, AsJson, Directory, json_file
from ratchet.cli.output import console, print_answer, print_facts, print_json, print_table, progress
from ratchet.core.contract import DEFAULT_ROLE
from ratchet.core.contract.directory import releases, stored_kinds
from ratchet.core.errors import InvalidMessage, NotFound, Rejected, UnknownSubject
from ratchet.core.resources import resource_dir
from ratchet.core.service.contracts import load_contracts

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from ratchet.core.service.settings import SharedSettings

app = typer.Typer(no_args_is_help=True)

OnProgress = Callable[[int, int], None]
"""Takes the number of messages that were checked, and of all."""


@app.command("list")
def list_topics(as_json: AsJson = False) -> None:
    """List every topic with its stream, its senders and readers; then the values stored in buckets and objects."""
    topics, stored = load_contracts().topics.values(), stored_kinds(resource_dir("contracts"))
    rows = [(t.name, t.stream, ", ".join(t.producers), ", ".join(t.consumers), t.description) for t in topics]
    places = [(s.where, s.schema, ", ".join(s.writers), ", ".join(s.readers), s.description) for s in stored]

    def show_both() -> None:
        print_table(("topic", "stream", "from", "to", "what"), rows, "no topics")
        print_table(("stored in", "schema", "from", "to", "what"), places, "nothing is stored")

    print_answer({"topics": list(topics), "stored": stored}, as_json, show_both)


@app.command()
def show(
    topic: Annotated[
        str,
        typer.Argument(
            help="A topic, with or without `agent.rl.`, a subject, or a stored value's or summary's schema."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show one topic or stored value: its subjects or places, its schema and its shortest valid example."""
    contracts, root = load_contracts(), resource_dir("contracts")
    stored = [kind for kind in stored_kinds(root) if kind.schema == topic]
    if stored:
        _show({"stored": stored}, topic, {"stored in": [kind.where for kind in stored]}, as_json)
        return
    headed = [read for read in contracts.topics.values() if topic in (read.summary, f"agent.rl.{read.summary}")]
    if headed:
        _show({"topic": headed[0]}, headed[0].summary, {"in a header of": [head.name for head in headed]}, as_json)
        return
    name = topic if topic.startswith("agent.rl.") else f"agent.rl.{topic}"
    near = [known for known in contracts.topics if known.startswith(f"{name}.")]
    if name not in contracts.topics and near:
        raise NotFound(f"there is no topic {topic}; there is {', '.join(near)}")
    known = contracts.topics.get(name) or contracts.topic_of(name)
    if not known.schema:
        raise NotFound(f"{known.name} has no schema: {', '.join(known.producers)} alone reads it")
    facts = {name: getattr(known, name) for name in ("subjects", "stream", "producers", "consumers")}
    _show({"topic": known}, known.schema, facts, as_json)


def _show(head: dict[str, Any], name: str, facts: dict[str, Any], as_json: bool) -> None:
    schema = load_schema(resource_dir("contracts"), name)
    examples = (document for _, document in _valid_examples(name))
    example = min(examples, key=lambda document: len(json.dumps(document)), default=None)
    if as_json:
        print_json({**head, "schema": schema, "example": example})
        return
    print_facts({name: v if isinstance(v, str) else ", ".join(v) for name, v in facts.items()})
    print_json(schema)
    if example is not None:
        print_json(example)


@app.command()
def openapi(service: Annotated[Interface, typer.Argument(help="Whose HTTP interface.")]) -> None:
    """Print the OpenAPI document of a service."""
    typer.echo(openapi_document(service, resource_dir("contracts")), nl=False)


@app.command()
def asyncapi() -> None:
    """Print the AsyncAPI document of the message bus, complete in itself."""
    document = asyncapi_document(resource_dir("contracts"), version("ratchet-rl"))
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


@app.command()
def check(
    schema: Annotated[Path, typer.Argument(help="A JSON Schema: the proposed contract of one topic.")],
    subject: Annotated[str | None, typer.Option(help="A subject of the topic, when $id does not say it.")] = None,
    days: Annotated[float, typer.Option(min=0.001, help="How far back the stream is read.")] = 7.0,
    most: Annotated[int, typer.Option(min=0, help="Most failing messages that are listed; all are counted.")] = 20,
    as_json: AsJson = False,
    directory: Directory = HERE,
) -> None:
    """Replay the live stream against a proposed schema. Exit code 3: some messages would fail, the first are listed.

    The answer also says whether the major version allows the change; that does not affect the exit code.
    """
    proposal = read_proposal(schema, subject)
    verdict = compatibility(proposal)
    with progress(f"reading {proposal.topic.stream}", quiet=as_json) as bar:
        findings = asyncio.run(replay(settings_of(locate(directory)), proposal, days, most, bar))
    if as_json:
        compatible = {"compatible": verdict.compatible, "changes": verdict.changes, "examples": verdict.examples}
        print_json({"topic": proposal.topic.name, "days": days, "compatibility": compatible, "replay": findings})
    else:
        for line in lines(findings, verdict, days):
            console.print(line, markup=False)
        columns = ("sequence", "role", "event", "view", "path", "reason")
        rows = [(f.sequence, f.role, f.event_id, f.view, f.path or "/", f.reason) for f in findings.failures]
        if rows:
            print_table(columns, rows, "")
    raise typer.Exit(ExitCode.PARTLY if findings.failed else ExitCode.DONE)


@dataclass(frozen=True, slots=True)
class Failure:
    """One message of the stream that the proposed schema refuses."""

    sequence: int
    event_id: str | None
    """None when neither headers nor body name one."""
    subject: str
    role: str
    stored_at: datetime
    view: str
    """`open`: readers would refuse it. `strict`: only the edges would."""
    path: str
    reason: str
    fails_today: bool
    """Whether the schema in force refuses it as well."""


@dataclass(frozen=True, slots=True)
class Compatibility:
    """Whether the proposal may follow the contract within its major version."""

    changes: list[Break]
    """Changes that break the rule, against the schema in force and every released one."""
    examples: list[str]
    """Valid examples that readers with the proposed schema would refuse."""

    @property
    def compatible(self) -> bool:
        return not self.changes and not self.examples


@dataclass(slots=True)
class Findings:
    """The result of a replay: counts of all failures, and the first `most` of them."""

    most: int
    messages: int = 0
    failed: int = 0
    failed_open: int = 0
    failed_today: int = 0
    failures: list[Failure] = field(default_factory=list[Failure])

    def add(self, failure: Failure | None) -> None:
        """Count one message."""
        self.messages += 1
        if failure is None:
            return
        self.failed += 1
        self.failed_open += failure.view == "open"
        self.failed_today += failure.fails_today
        if len(self.failures) < self.most:
            self.failures.append(failure)


@dataclass(frozen=True)
class Proposal:
    """A proposed schema, and its topic."""

    topic: Topic
    schema: Json
    today: Json
    views: Schema
    views_today: Schema


def read_proposal(file: Path, subject: str | None) -> Proposal:
    """Read and compile a schema file. Raises `NotFound`, `Rejected` or `UnknownSubject`."""
    root, contracts = resource_dir("contracts"), load_contracts()
    schema = with_references(root, json_file(file))
    named = schema.get("$id", "") if isinstance(schema, dict) else ""
    topics = (known for known in contracts.topics.values() if named == f"urn:ratchet:schema:{known.schema}")
    topic = contracts.topic_of(subject) if subject else next(topics, None)
    if topic is None:
        raise UnknownSubject(f"the $id of {file} names no topic: name one with --subject")
    today = load_schema(root, topic.schema)
    return Proposal(topic, schema, today, Schema(schema), Schema(today))


def compatibility(proposal: Proposal) -> Compatibility:
    """Compare with the contract in force, and with every released version of it."""
    name = proposal.topic.schema
    earlier = [
        release.schemas[name] for release in releases(resource_dir("contracts")).values() if name in release.schemas
    ]
    changes = {change: None for old in (proposal.today, *earlier) for change in breaks(old, proposal.schema)}
    examples = ((place, proposal.views.breach(example)) for place, example in _valid_examples(name))
    refused = [place for place, breach in examples if breach is not None and breach.view == "open"]
    return Compatibility(list(changes), refused)


def _valid_examples(schema: str) -> Iterator[tuple[str, Json]]:
    """Those of today, which only a checkout has, and of every release; each with its place in `contracts`."""
    root = resource_dir("contracts")
    for file in sorted((root / "examples" / schema / "valid").glob("*.json")):
        yield str(file.relative_to(root)), json.loads(file.read_text())
    for number, release in releases(resource_dir("contracts")).items():
        for name, example in release.examples.get(schema, {}).items():
            yield f"released/{number}.json#/examples/{schema}/{name}", example


async def replay(
    settings: SharedSettings, proposal: Proposal, days: float, most: int, on_progress: OnProgress
) -> Findings:
    """Check the last `days` of the live stream with the proposal. Raises `BusUnavailable` or `Rejected`."""
    findings = Findings(most)
    async with connected(settings) as bus:
        stream, subjects = proposal.topic.stream, bus.contracts.subjects(proposal.topic.name)
        if bus.contracts.streams[stream].retention == "workqueue":
            raise Rejected(f"{stream} is a work queue: its messages belong to the workers and cannot be read again")
        reading = reader(bus, stream, subjects, start=utc_now() - timedelta(days=days))
        async with aclosing(reading.to_end()) as batches:
            async for batch in batches:
                for message in batch:
                    findings.add(failure_of(proposal, bus.contracts, message))
                on_progress(findings.messages, reading.total)
    return findings


def failure_of(proposal: Proposal, contracts: Contracts, message: Msg) -> Failure | None:
    """Why the proposal refuses a message of the stream; None when it takes it."""
    headers = dict(message.headers or {})
    try:
        parsed = parse(unseal(headers, message.data))
    except InvalidMessage as error:
        return _failure(message, headers, None, (Breach("open", error.path, error.reason), True))
    breach = proposal.views.breach(parsed)
    if breach is None:
        return None
    today = proposal.views_today.breach(parsed)
    already = today is not None and (today.view == "open" or breach.view == "strict")
    try:  # the id that readers give to a message without headers
        own_id = contracts.read(message.subject, json.dumps(parsed).encode())[0].event_id
    except InvalidMessage:
        own_id = None
    return _failure(message, headers, own_id, (breach, already))


def _failure(message: Msg, headers: dict[str, str], own_id: str | None, verdict: tuple[Breach, bool]) -> Failure:
    breach, already = verdict
    head, _, last = message.subject.rpartition(".v1")
    return Failure(
        sequence=message.metadata.sequence.stream,
        event_id=headers.get("ce-id") or headers.get("Nats-Msg-Id") or own_id,
        subject=message.subject,
        role=(last.removeprefix(".") if head else "") or DEFAULT_ROLE,
        stored_at=message.metadata.timestamp,
        view=breach.view,
        path=breach.path,
        reason=breach.reason,
        fails_today=already,
    )


def lines(findings: Findings, verdict: Compatibility, days: float) -> Iterator[str]:
    """The answer in words, the tables left out."""
    if verdict.compatible:
        yield "compatible: older readers take its messages, and it takes theirs"
    else:
        yield "not compatible: this change needs a new version of the subject (contracts/README.md)"
        yield from (f"  {change.path or '/'}: {change.what}" for change in verdict.changes)
        yield from (f"  refuses the valid example {name}" for name in verdict.examples)
    yield f"{findings.messages} messages of the last {days:g} days: {findings.failed} would fail"
    if findings.failed:
        yield (
            f"  {findings.failed_open} would be refused by readers, {findings.failed - findings.failed_open} only at "
            f"the edges; {findings.failed_today} fail today too"
        )

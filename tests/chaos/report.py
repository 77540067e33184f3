"""docs/chaos.md: what runs came to, one column each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from tests.chaos.balance import STUCK_S
from tests.chaos.run import CHAPTER, Report
from tests.chaos.schedule import KINDS
from tests.chaos.world import BAD, EQUAL

HEAD = """# Chaos

`make chaos` runs the stack of `ratchet up` as processes, with agents at work, and breaks it at random by a seed. Agents
call through the gateway and end their trajectories; another records its own with the client. In two roles one candidate
follows the other. How a trajectory ends is a function of its id, whichever arm answered, but that in the role `bad` the
canary always fails. After every {chapter} faults, while agents rest, everything that was acknowledged must be in
ClickHouse once, with one right reward, and the ledger must balance; at the end every candidate must be decided, none
wrongly. There are no deadlines: a run fails when nothing has moved for {stuck:.0f} s, and says who holds what.

| kind | what happens |
|---|---|
| kill | SIGKILL to a service or server of the stack and its children |
| freeze | SIGSTOP to one, for 1 to 9 s; the supervisor ends what stays silent |
| cut | connections of all services and agents to a server are reset and refused, or silent |
| full disk | not a page is free, for servers, spools and logs |
| delete | one of five streams of events with its consumers, or one of its consumers |
| clock | a service's system clock is set by 30 s, 10 min or 2 h, forward or back, and later right again |

No run has two faults at the same time (a fault may meet the recovery from the one before), faults of the
supervisor or of an agent, deleted buckets, a disk that fills by itself, or power failures. A candidate whose
stream of evidence was deleted is taken back with it, as [E6](guarantees.md#events) promises, equal or not.

Two faults of Ratchet are what such runs have caught. On a full disk chDB reports success for parts with empty files,
and every query of their table failed until an operator detached them: now the supervisor starts the engine again, once
for each part ([E3](guarantees.md#events)), also where no error names it, as where it is the index that cannot be read.
A reward computer that was started again, and whose stream of rewards was deleted after that, waited for a sequence that
only its own rewards could bring. Now it waits for the past once, at the start.

All figures are of two cores that were shared with other work (10 to 40 processes that could run): times say nothing.
Rewards beyond the expected ones are of trajectories whose end no agent was answered.

"""


def page(reports: Sequence[Report]) -> str:
    """The whole page."""
    names = ["", *(f"seed {report.seed}" for report in reports)]
    lines = [_line(names), _line(["---"] * len(names))]
    lines += [_line([name, *map(value, reports)]) for name, value in ROWS.items()]
    return HEAD.format(chapter=CHAPTER, stuck=STUCK_S) + "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _kinds(report: Report) -> str:
    counts = Counter(planned.kind for planned in report.faults)
    return ", ".join(f"{kind} {counts[kind]}" for kind in KINDS)


def _figure(*names: str) -> Callable[[Report], str]:
    return lambda report: " / ".join(f"{report.balance.figures.get(name, 0):,}" for name in names)


def _verdicts(role: str) -> Callable[[Report], str]:
    def shown(report: Report) -> str:
        states = Counter(
            "taken back with its evidence" if verdict.lost_evidence else verdict.state.replace("_", " ")
            for verdict in report.verdicts
            if verdict.role == role
        )
        return ", ".join(f"{state} {count}" for state, count in sorted(states.items()))

    return shown


def _stored(what: str) -> Callable[[Report], str]:
    return _figure(f"{what} acknowledged", f"{what} stored", f"{what} doubled", f"{what} lost with a gateway")


ROWS: dict[str, Callable[[Report], str]] = {
    "faults": lambda report: str(len(report.faults)),
    "by kind": _kinds,
    "restarts": lambda report: ", ".join(f"{name} {count}" for name, count in report.restarts.items() if count),
    "requests that agents repeated": lambda report: f"{report.repeated:,}",
    "trajectories: acknowledged / stored / doubled / lost with a killed gateway (G3)": _stored("trajectories"),
    "turns: the same": _stored("turns"),
    "opinions: the same": _stored("opinions"),
    "rewards: expected / stored / doubled / lost with a killed gateway": _stored("rewards"),
    "ledger: stored / duplicate / dead / lost / missing / absent": _figure(
        *(f"ledger {name}" for name in ("stored", "duplicate", "dead", "lost", "missing", "absent"))
    ),
    "equal canaries": _verdicts(EQUAL),
    "bad canaries": _verdicts(BAD),
    "minutes": lambda report: f"{report.seconds / 60:.0f}",
}

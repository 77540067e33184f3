"""The collector's metrics."""

from prometheus_client import Counter, Gauge, Histogram

from ratchet.core.contract import Trajectory
from ratchet.core.contract.values import DOMAINS, PROFILES
from ratchet.core.rules.task_kind import domain_of

COLLECTED = Counter("agent_rl_trajectories_collected_total", "Trajectories stored.", ["agent_type", "task_domain"])
LENGTH = Histogram("agent_rl_trajectory_length", "Turns per trajectory.", buckets=(1, 3, 5, 10, 20, 50))
STORED = Counter("ratchet_ledger_outcomes_total", "Messages accounted for, by outcome.", ["stream", "outcome"])
MISSING = Gauge("ratchet_ledger_missing", "Settled messages that the ledger does not account for.", ["stream"])
ABSENT = Gauge("ratchet_ledger_absent", "Messages that are stored by the ledger and have no row.", ["stream"])
IDLE = Counter("ratchet_idle_trajectories_total", "Trajectories assembled because their agent fell silent.")
SUPERSEDED = Counter(
    "ratchet_superseded_trajectories_total", "Trajectories reported after they had been assembled as idle."
)
UNASSEMBLED = Counter("ratchet_unassembled_trajectories_total", "Idle trajectories whose turns do not fit together.")
LEFT_OUT = Counter(
    "ratchet_turns_left_out_total", "Turns of a run beyond what one assembly takes, at each assembly of it."
)
REPEATED = Counter(
    "ratchet_repeated_calls_total",
    "Answered calls that are in no trajectory, because another answer to the same prompt counts, at each assembly.",
)
TRACES = Counter(
    "ratchet_telemetry_traces_total", "Traces of telemetry that were over, by what they became.", ["outcome"]
)
SPANS = Counter(
    "ratchet_telemetry_spans_total",
    "Spans that are in no trajectory, or came after it was made, and model calls whose content no span or event has"
    " (`silent`), by the reason.",
    ["outcome"],
)
RESTORED = Counter("ratchet_restored_messages_total", "Settled messages read again for the ledger.", ["stream"])
REWOUND = Counter("ratchet_stream_rewound_total", "Times that a stream was made anew, or an older copy.", ["stream"])
FILL = Gauge("ratchet_stream_fill_ratio", "Share of its bound that a stream has used, 0..1.", ["stream"])
DROPPED = Counter("ratchet_dead_letters_dropped_total", "Dead letters that a full stream dropped before their time.")
UNREDACTED = Counter(
    "ratchet_unredacted_messages_total",
    "Messages that did not say that they were redacted (`none`), or by other rules than those of the collector.",
    ["topic", "reason"],
)
ARCHIVED = Counter(
    "ratchet_archived_rows_total", "Rows that went to the archive, or expired there.", ["table", "outcome"]
)
TRIMMED = Counter("ratchet_stream_trimmed_total", "Messages trimmed from a stream.", ["stream"])

MAIN, OTHER = "main", "other"
"""Labels of an agent without a profile, and of agents and tasks that have words of their own."""
AGENT_TYPES = frozenset({MAIN, *PROFILES})
TASK_DOMAINS = frozenset(DOMAINS)


def count_stored(trajectory: Trajectory) -> None:
    """Count a trajectory, by the kinds that the contract lists: each further one would be a series for ever."""
    kind = trajectory.subordinate_profile or MAIN
    domain = domain_of(trajectory)
    COLLECTED.labels(kind if kind in AGENT_TYPES else OTHER, domain if domain in TASK_DOMAINS else OTHER).inc()
    LENGTH.observe(len(trajectory.turns))


def outcomes() -> tuple[float, float]:
    """Messages that were accounted for, without those that are dead; and these."""
    samples = [sample for metric in STORED.collect() for sample in metric.samples if sample.name.endswith("_total")]
    dead = sum(sample.value for sample in samples if sample.labels["outcome"] == "dead")
    return sum(sample.value for sample in samples) - dead, dead

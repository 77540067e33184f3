"""What a process says of itself: why it is not ready, its faults, and its metrics; and of several processes as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import msgspec
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

ADDED = frozenset({"counter", "histogram", "summary"})
"""Kinds of metrics that only grow: their values outlive the process that counted them."""
CREATED = "_created"
"""How the sample ends that says since when a counter counts."""
LARGEST = frozenset({"python_info", "ratchet_check_failing"})
"""Gauges of which the largest value is that of all processes together."""
SMALLEST = frozenset({"process_start_time_seconds"})
"""Gauges of which it is the smallest; of all others it is the sum."""

Labels = tuple[tuple[str, str], ...]


class Family(msgspec.Struct, frozen=True, array_like=True):
    """A metric with all its samples."""

    name: str
    about: str
    kind: str
    """As Prometheus names it."""
    samples: tuple[tuple[str, Labels, float], ...]
    """Name, labels and value of each."""


class Report(msgspec.Struct, frozen=True, array_like=True):
    """What a process says of itself."""

    reasons: dict[str, str]
    """Why it is not ready, by check; empty when it is."""
    notes: dict[str, str]
    """Faults that do not keep it from its work, by check."""
    families: tuple[Family, ...] = ()


def families_of(collector: Collector = REGISTRY) -> tuple[Family, ...]:
    """What a process counts."""
    return tuple(
        Family(
            metric.name,
            metric.documentation,
            metric.type,
            tuple((sample.name, tuple(sorted(sample.labels.items())), sample.value) for sample in metric.samples),
        )
        for metric in collector.collect()
    )


def lasting(families: Iterable[Family]) -> tuple[Family, ...]:
    """What remains of the metrics of a process that has ended."""
    return tuple(family for family in families if family.kind in ADDED)


def together(processes: Iterable[Iterable[Family]], largest: Set[str] = frozenset()) -> tuple[Family, ...]:
    """The metrics of several processes as those of one; `largest`: further gauges of which the largest value counts."""
    first: dict[str, Family] = {}
    values: dict[str, dict[tuple[str, Labels], float]] = {}
    for family in (family for families in processes for family in families):
        known = first.setdefault(family.name, family)
        total = values.setdefault(known.name, {})
        for name, labels, value in family.samples:
            before = total.get((name, labels))
            total[name, labels] = value if before is None else _both(family, name, before, value, largest)
    return tuple(
        msgspec.structs.replace(family, samples=tuple((*key, value) for key, value in values[family.name].items()))
        for family in first.values()
    )


def _both(family: Family, sample: str, one: float, other: float, largest: Set[str]) -> float:
    """One value of two."""
    if family.name in SMALLEST or sample.endswith(CREATED):
        return min(one, other)
    if family.name in LARGEST or family.name in largest:
        return max(one, other)
    return one + other


@dataclass(frozen=True)
class _Families(Collector):
    families: Sequence[Family]

    def collect(self) -> Iterable[Metric]:
        for family in self.families:
            metric = Metric(family.name, family.about, family.kind)
            for name, labels, value in family.samples:
                metric.add_sample(name, dict(labels), value)
            yield metric


def exposition(families: Sequence[Family]) -> bytes:
    """Metrics in the text format of Prometheus."""
    return generate_latest(_Families(families))


def reasons_by_check(processes: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The reasons of several processes, each with the name of its process."""
    checks = dict.fromkeys(check for reasons in processes.values() for check in reasons)
    return {
        check: "; ".join(f"{process}: {reasons[check]}" for process, reasons in processes.items() if check in reasons)
        for check in checks
    }

"""What several processes say of themselves reads as one process's: counters add up and never fall."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ratchet.core.service.reports import Family, exposition, families_of, lasting, reasons_by_check, together


def counting(calls: int, seconds: float, waiting: float, *, failing: bool) -> tuple[Family, ...]:
    """What a process counts that had some calls of one duration."""
    registry = CollectorRegistry()
    counter = Counter("calls_total", "Calls.", ["arm"], registry=registry)
    histogram = Histogram("call_seconds", "Their time.", registry=registry, buckets=(1, 2))
    for _ in range(calls):
        counter.labels("stable").inc()
        histogram.observe(seconds)
    Gauge("waiting", "Calls that wait.", registry=registry).set(waiting)
    Gauge("lapsed", "A state.", registry=registry).set(failing)
    return families_of(registry)


def values(families: tuple[Family, ...]) -> dict[str, float]:
    """Values by name and `le`, as Prometheus reads them."""
    samples = [s for family in text_string_to_metric_families(exposition(families).decode()) for s in family.samples]
    return {s.name + s.labels.get("le", ""): s.value for s in samples if not s.name.endswith("_created")}


def test_metrics_of_one_process_read_as_the_library_writes_them() -> None:
    registry = CollectorRegistry()
    Counter("calls_total", 'Calls, "all" \\ of them.', ["arm"], registry=registry).labels('a "b"\n').inc()
    Histogram("call_seconds", "Their time.", ["role"], registry=registry).labels("r").observe(3)
    assert exposition(families_of(registry)) == generate_latest(registry)


def test_counts_and_gauges_add_up_and_of_states_the_worst_counts() -> None:
    one, other = counting(3, 0.5, 2, failing=False), counting(4, 1.5, 5, failing=True)
    assert values(together([one, other], frozenset({"lapsed"}))) == {
        "calls_total": 7,
        "call_seconds_bucket1.0": 3,
        "call_seconds_bucket2.0": 7,
        "call_seconds_bucket+Inf": 7,
        "call_seconds_count": 7,
        "call_seconds_sum": 7.5,
        "waiting": 7,
        "lapsed": 1,
    }


def test_labels_of_one_process_alone_stay_and_types_too() -> None:
    registry = CollectorRegistry()
    Counter("calls_total", "Calls.", ["arm"], registry=registry).labels("canary").inc(2)
    families = together([counting(1, 1, 0, failing=False), families_of(registry)])
    read = {family.name: family for family in text_string_to_metric_families(exposition(families).decode())}
    assert {s.labels["arm"]: s.value for s in read["calls"].samples if s.name == "calls_total"} == {
        "stable": 1,
        "canary": 2,
    }
    assert (read["calls"].type, read["call_seconds"].type, read["waiting"].type) == ("counter", "histogram", "gauge")


def test_of_a_process_that_ended_what_it_counted_remains_and_its_state_does_not() -> None:
    gone = lasting(counting(3, 0.5, 2, failing=True))
    after = values(together([counting(0, 0, 1, failing=False), gone], frozenset({"lapsed"})))
    assert after["calls_total"] == after["call_seconds_count"] == 3
    assert (after["waiting"], after["lapsed"]) == (1, 0)


def test_reasons_name_the_processes_that_have_them() -> None:
    processes = {"worker 1": {"routes": "unread", "files": "none"}, "worker 2": {}, "worker 3": {"routes": "unread"}}
    assert reasons_by_check(processes) == {"routes": "worker 1: unread; worker 3: unread", "files": "worker 1: none"}
    assert reasons_by_check({"worker 1": {}}) == {}

"""Which call a request repeats."""

from __future__ import annotations

from ratchet.gateway.domain.retries import CALLS, Retries


class Value:
    """A call."""


def take(retries: Retries[Value], scope: str, body: bytes) -> Value | None:
    failed = retries.take_failed(scope, body)
    return failed.value if failed else retries.take_open(scope, body)


def test_calls_are_compared_in_scope_and_length_and_forgotten_beyond() -> None:
    retries = Retries[Value](lambda: 0.0, 60.0)
    first = Value()
    retries.open("a", b"same", first)
    retries.fail(first)
    assert take(retries, "b", b"same") is None
    assert take(retries, "a", b"some") is None
    opened = [Value() for _ in range(CALLS + 1)]
    for value in opened:
        retries.open("a", b"other", value)
    assert len(retries) == CALLS + 1
    for value in opened:
        retries.fail(value)
    assert len(retries) == CALLS
    assert take(retries, "a", b"same") is None
    retries.close(first)
    assert len(retries) == CALLS


def test_a_failure_elsewhere_has_one_repetition_too_wherever_that_comes() -> None:
    here, there = (Retries[Value](lambda: 0.0, 60.0) for _ in range(2))
    here.open("a", b"same", value := Value())
    failed = here.fail(value)
    assert failed is not None
    there.learn_failed(known := Value(), failed.mark, failed.length, 60.0)
    assert there.take_failed("b", b"same") is None
    taken = there.take_failed("a", b"same")
    assert taken is not None
    assert taken.value is known
    here.forget(taken.mark, taken.length, lambda one: one is not value)
    assert len(here) == 1
    here.forget(taken.mark, taken.length, lambda one: one is value)
    assert (here.take_failed("a", b"same"), there.take_failed("a", b"same")) == (None, None)


def test_calls_that_failed_side_by_side_are_repeated_in_that_order() -> None:
    retries = Retries[Value](lambda: 0.0, 60.0)
    values = [Value(), Value()]
    for value in values:
        retries.open("a", b"same", value)
    for value in values:
        retries.fail(value)
        retries.fail(value)
    assert [take(retries, "a", b"same") for _ in range(3)] == [*values, None]
    assert len(retries) == 0

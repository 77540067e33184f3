"""Wires that end a rollout without statistics: when they are touched, and when not."""

from __future__ import annotations

from dataclasses import replace

from ratchet.canary_deployer.domain.rules import TripLimits
from ratchet.canary_deployer.domain.statistics import ArmCounts, Statistics
from ratchet.canary_deployer.domain.trip_wires import NO_LOOKS, look

LIMITS = TripLimits(sustained_checks=2)


def calls(canary_errors: int, canary: int = 100, stable_errors: int = 0, stable: int = 1000) -> Statistics:
    return Statistics(
        canary=ArmCounts(calls=canary, errors=canary_errors), stable=ArmCounts(calls=stable, errors=stable_errors)
    )


def test_an_error_rate_over_the_limit_trips_when_it_is_sustained():
    looks, tripped = look(NO_LOOKS, calls(6), LIMITS)
    assert tripped is None
    looks, tripped = look(looks, calls(7, canary=101), LIMITS)
    assert tripped is not None
    assert tripped.reason == "error rate 6.9% of 101 canary calls is over 5%"


def test_looking_again_at_the_same_calls_proves_nothing_more():
    looks, _ = look(NO_LOOKS, calls(50), LIMITS)
    assert look(looks, calls(50), LIMITS) == (looks, None)


def test_a_good_look_in_between_starts_the_count_again():
    looks, _ = look(NO_LOOKS, calls(50), LIMITS)
    looks, _ = look(looks, calls(1, canary=200), LIMITS)
    assert look(looks, calls(60, canary=210), LIMITS)[1] is None


def test_exactly_the_limit_few_calls_or_an_outage_of_both_arms_do_not_trip():
    at_once = replace(LIMITS, sustained_checks=1)
    assert look(NO_LOOKS, calls(5), at_once)[1] is None
    assert look(NO_LOOKS, calls(39, canary=39), at_once)[1] is None
    assert look(NO_LOOKS, calls(50, stable_errors=400), at_once)[1] is None
    assert look(NO_LOOKS, calls(6), at_once)[1] is not None


def test_negative_feedback_over_twice_that_of_stable_trips():
    at_once = replace(LIMITS, sustained_checks=1)

    def rated(canary: int, stable: int, of: int = 40) -> Statistics:
        return Statistics(canary=ArmCounts(rated=of, negative=canary), stable=ArmCounts(rated=of, negative=stable))

    assert look(NO_LOOKS, rated(9, 4), at_once)[1] is not None
    assert look(NO_LOOKS, rated(8, 4), at_once)[1] is None
    assert look(NO_LOOKS, rated(1, 0), at_once)[1] is None
    assert look(NO_LOOKS, rated(19, 0, of=19), at_once)[1] is None


def test_one_safety_violation_trips_at_once():
    _, tripped = look(NO_LOOKS, Statistics(canary=ArmCounts(violations=1)), LIMITS)
    assert tripped is not None
    assert tripped.wire == "safety"

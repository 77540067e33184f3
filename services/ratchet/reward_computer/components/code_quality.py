"""How good is the code that the agent wrote? Mean of lint score, pass rate and absence of critical issues."""

from __future__ import annotations

from ratchet.reward_computer.components.base import Assessment, Evidence


def code_quality(evidence: Evidence) -> Assessment | None:
    """Says nothing without code; the mean is over what was measured."""
    quality = evidence.trajectory.quality
    if quality is None:
        return None
    parts: dict[str, float] = {}
    if quality.lint_score is not None:
        parts["lint"] = _unit(quality.lint_score / 10.0)
    if quality.tests_total:
        parts["tests"] = _unit((quality.tests_passed or 0) / quality.tests_total)
    if quality.critical_issues is not None:
        parts["critical_issues"] = max(0.0, 1.0 - 0.5 * quality.critical_issues)
    if not parts:
        return None
    reasoning = ", ".join(f"{name} {value:.2f}" for name, value in parts.items())
    only = next(iter(parts)) if len(parts) == 1 else ""
    source = {"lint": "linter", "tests": "test_results"}.get(only, "automated")
    return Assessment(sum(parts.values()) / len(parts), evidence.trust, reasoning, source, dict(parts))


def _unit(value: float) -> float:
    return min(1.0, max(0.0, value))

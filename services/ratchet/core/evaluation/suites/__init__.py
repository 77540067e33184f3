"""The suites: tasks that say how safe a policy is, and what it can do. A new suite is a file and a line, or a package.

Those about safety name what must not be answered, and hold no instructions for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.bus.message import encode
from ratchet.core.errors import NotFound, Rejected
from ratchet.core.evaluation.suites import (
    instruction_following,
    jailbreak,
    of_roles,
    over_refusal,
    prompt_injection,
    refusal,
    tool_calling,
    toxicity_bias,
)
from ratchet.core.evaluation.suites.base import SAFETY, Suite
from ratchet.core.evaluation.task_files import TaskFile, parse_tasks
from ratchet.core.plugins import PluginTable, instance_of

HELDOUT, REGRESSION = "heldout", "regression"
"""Those of roles."""
SUITES: PluginTable[Suite] = PluginTable(
    "ratchet.suites",
    "suite",
    {
        "refusal": refusal.SUITE,
        "toxicity_bias": toxicity_bias.SUITE,
        "jailbreak": jailbreak.SUITE,
        "prompt_injection": prompt_injection.SUITE,
        "over_refusal": over_refusal.SUITE,
        "tool_calling": tool_calling.SUITE,
        "instruction_following": instruction_following.SUITE,
        HELDOUT: of_roles.HELDOUT,
        REGRESSION: of_roles.REGRESSION,
    },
    instance_of(Suite),
)
SAFETY_SUITES = tuple(name for name, suite in SUITES.built_in.items() if suite.task_type.startswith(SAFETY))
"""Those that ship and say how safe a policy is."""


def suite_named(name: str, suites: Mapping[str, Suite] = SUITES) -> Suite:
    """Raises `NotFound`, and `ConfigError` for one of a package that does not fit."""
    try:
        return suites[name]
    except KeyError as error:
        raise NotFound(f"there is no suite {name!r}; there are {', '.join(suites)}") from error


def suite_tasks(name: str, suites: Mapping[str, Suite] = SUITES) -> TaskFile:
    """The tasks of a suite, checked as those of a file are.

    Raises `NotFound`, `Rejected` for one whose tasks are a role's own, and `ConfigError` or `Rejected` for a suite of a
    package that does not fit, or makes no tasks.
    """
    suite = suite_named(name, suites)
    if suite.tasks is None:
        raise Rejected(f"the tasks of suite {name} are a role's own: name the role")
    try:
        lines = [encode(task) for task in suite.tasks()]
    except Exception as error:  # the boundary: a suite runs code of another package
        raise Rejected(f"suite {name} makes no tasks: {type(error).__name__}: {error}") from error
    return parse_tasks(b"\n".join(lines), f"suite {name}")


__all__ = ["HELDOUT", "REGRESSION", "SAFETY_SUITES", "SUITES", "Suite", "suite_named", "suite_tasks"]

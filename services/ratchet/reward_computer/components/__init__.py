"""Reward components by name: one file each, one line here. Other packages bring more (`ratchet.core.plugins`)."""

from ratchet.core.plugins import PluginTable
from ratchet.reward_computer.components.accuracy import accuracy
from ratchet.reward_computer.components.base import Assessment, Component, Evidence, fitting_component
from ratchet.reward_computer.components.code_quality import code_quality
from ratchet.reward_computer.components.cost_latency import cost_latency
from ratchet.reward_computer.components.efficiency import efficiency
from ratchet.reward_computer.components.judge import judge
from ratchet.reward_computer.components.parent import parent
from ratchet.reward_computer.components.reward_model import reward_model
from ratchet.reward_computer.components.safety import safety
from ratchet.reward_computer.components.task_completion import task_completion
from ratchet.reward_computer.components.user_feedback import user_feedback

COMPONENTS: PluginTable[Component] = PluginTable(
    "ratchet.reward_components",
    "reward component",
    {
        "task_completion": task_completion,
        "efficiency": efficiency,
        "code_quality": code_quality,
        "user_feedback": user_feedback,
        "safety": safety,
        "accuracy": accuracy,
        "cost_latency": cost_latency,
        "judge": judge,
        "reward_model": reward_model,
        "parent": parent,
    },
    fitting_component,
)

__all__ = ["COMPONENTS", "Assessment", "Component", "Evidence"]

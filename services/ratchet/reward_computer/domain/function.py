"""A reward function as it is stored: all that a reward depends on besides the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from ratchet.bus.message import Value
from ratchet.core.contract.reward import RewardFunction
from ratchet.core.judging.calibration import Calibration
from ratchet.core.judging.profile import JudgeProfile
from ratchet.reward_computer.domain.reward import RewardSpec


class FunctionRecord(Value, frozen=True, kw_only=True):
    """One version of a function, with the calibrations that its judges had."""

    function: RewardFunction
    weights: Mapping[str, Mapping[str, float]]
    method: str
    methods: Mapping[str, str]
    window: int
    dense: bool
    judges: Mapping[str, JudgeProfile]
    calibrations: Mapping[str, Calibration]
    since: datetime | None = None
    """Of a proposal: history was recomputed from here on."""
    reward_models: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])

    @classmethod
    def of(cls, spec: RewardSpec, since: datetime | None = None) -> FunctionRecord:
        """The record of a function."""
        return cls(
            function=spec.function,
            weights=spec.weights,
            method=spec.method,
            methods=spec.methods,
            window=spec.window,
            dense=spec.dense,
            judges=spec.judges,
            calibrations=spec.calibrations,
            since=since,
            reward_models=spec.reward_models,
        )

    def spec(self) -> RewardSpec:
        """The function, with the components of this process."""
        return RewardSpec(
            function=self.function,
            weights=self.weights,
            method=self.method,
            methods=self.methods,
            window=self.window,
            dense=self.dense,
            judges=self.judges,
            calibrations=self.calibrations,
            reward_models=self.reward_models,
        )

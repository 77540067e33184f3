"""Which reward function is in force: the settings' until one is accepted, in every process as soon as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ratchet.bus.kv import Bucket
from ratchet.bus.testing import FakeBus
from ratchet.core.contract.reward import RewardFunction
from ratchet.core.contract.state import REWARD_FUNCTIONS
from ratchet.core.judging.calibration import Calibration
from ratchet.core.judging.profile import JudgeProfile
from ratchet.reward_computer.domain.function import FunctionRecord
from ratchet.reward_computer.domain.reward import RewardSpec
from ratchet.reward_computer.kv_functions import Functions
from tests.support.fake_bus import fake_bus
from tests.support.messages import AT
from tests.support.rewards import FUNCTION

JUDGE = JudgeProfile("big", "Be kind.", tries=2)
AGREED = Calibration(labels=60, agreed=55, kappa=0.8, low=0.6, high=0.95)
SECOND = RewardSpec(
    function=RewardFunction(name="standard", version="2"),
    weights={"support": {"task_completion": 0.5, "judge": 0.5}},
    methods={"support": "none"},
    window=50,
    dense=False,
    judges={"default": JUDGE},
    calibrations={JUDGE.digest: AGREED},
)


def functions_on(bus: FakeBus, configured: RewardSpec | None = None) -> Functions:
    bucket: Bucket[FunctionRecord] = Bucket(bus, REWARD_FUNCTIONS, FunctionRecord)
    return Functions(bucket, configured or RewardSpec(function=FUNCTION))


async def test_function_of_the_settings_counts_until_one_is_accepted() -> None:
    bus = fake_bus()
    service, command = functions_on(bus), functions_on(bus, SECOND)
    await command.propose(SECOND, AT)
    assert (await service.in_force()).function == FUNCTION
    await command.accept(SECOND)
    assert (await service.in_force()).digest == SECOND.digest
    assert await service.in_force() is await service.in_force()


async def test_accepted_function_is_the_one_that_was_proposed() -> None:
    command = functions_on(fake_bus(), SECOND)
    assert await command.proposed(SECOND.function) is None
    await command.propose(SECOND, AT)
    record = await command.proposed(SECOND.function)
    assert record is not None
    assert (record.spec().digest, record.since) == (SECOND.digest, AT)
    assert record.spec().weights_of("support")["judge"] == 0.5


async def test_settings_that_describe_the_accepted_function_otherwise_are_noted() -> None:
    bus = fake_bus()
    plain: Any = replace(SECOND, calibrations={})
    await functions_on(bus, SECOND).accept(SECOND)
    assert await functions_on(bus).check() is None
    assert await functions_on(bus, plain).check() is None
    other = replace(plain, window=60)
    assert "standard@2 otherwise than it was accepted" in (await functions_on(bus, other).check() or "")

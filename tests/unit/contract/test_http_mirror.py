"""The typed mirror of the coordinator's answers has their members."""

from __future__ import annotations

import msgspec
import pytest
from pydantic import BaseModel

from ratchet.contract.http import jobs, models, status
from ratchet.rl_coordinator.http import models as http_models
from ratchet.rl_coordinator.http import status_models
from ratchet.rl_coordinator.registry import http_registry_models, http_replay

SERVED = {
    name: kind
    for module in (http_models, status_models, http_registry_models, http_replay)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, BaseModel) and name.endswith(("Out", "Part", "Page", "Brief"))
}
MIRROR = {
    name: kind
    for module in (jobs, models, status)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
}


@pytest.mark.parametrize("name", sorted(SERVED.keys() - {"ErrorOut", "ErrorPart"}))
def test_an_answer_has_the_members_of_its_mirror(name: str):
    assert list(MIRROR[name].__struct_fields__) == list(SERVED[name].model_fields)

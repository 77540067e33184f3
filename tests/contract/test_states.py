"""States in buckets: typed for their writer, and open for readers of a newer one."""

from __future__ import annotations

import msgspec
import pytest

from ratchet.bus.message import decode, encode
from ratchet.core.contract.state import Job, JobState, PolicyStage, PolicyVersion
from tests.support.contract_files import ALL_SCHEMAS, example


@pytest.mark.parametrize(
    ("schema", "member", "kind", "values"),
    [("job.v1", "state", Job, JobState), ("policy.v1", "stage", PolicyVersion, PolicyStage)],
)
def test_value_of_newer_version_reaches_its_reader_and_is_written_back(
    schema: str, member: str, kind: type[msgspec.Struct], values: type[JobState]
) -> None:
    assert [value.value for value in values] == ALL_SCHEMAS[schema]["properties"][member]["enum"]
    later = {**example(schema), member: "mothballed"}
    read = decode(msgspec.json.encode(later), kind)
    assert getattr(read, member) == "mothballed"
    assert getattr(read, member) not in [*values]
    assert msgspec.json.decode(encode(read))[member] == "mothballed"
    with pytest.raises(msgspec.ValidationError):
        decode(msgspec.json.encode({**later, member: 5}), kind)

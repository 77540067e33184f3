"""Whatever names a thing on a command line means one thing, or the error says what it could mean."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ratchet.cli.ids import Latest, latest_in, only_one, require_one_role, short_ids
from ratchet.core.contract.http.jobs import JobOut
from ratchet.core.errors import Rejected

BURST = ["01a1fca2-df19-713d-8bd8-1bb400e40e5d", "01a1fca2-df19-713e-9bd8-1bb400e40e5d"]
LATER = "01a1fca2-df20-7000-8bd8-1bb400e40e5d"
RANDOM = ["7c9e6679-7425-40de-944b-e07fc1f90ae7", "7d444840-9dc0-11d1-b245-5ffdce74fad2"]


def test_a_short_id_is_no_longer_than_it_needs_to_be() -> None:
    assert short_ids([*BURST, LATER, *RANDOM]) == {
        BURST[0]: "01a1fca2-df19-713d",
        BURST[1]: "01a1fca2-df19-713e",
        LATER: "01a1fca2-df20",
        RANDOM[0]: "7c9e6679",
        RANDOM[1]: "7d444840",
    }


def test_a_short_id_is_that_of_one_of_those_that_are_listed() -> None:
    every = [*BURST, LATER, *RANDOM, "nightly", "nightly-2"]
    for one, short in short_ids(every).items():
        assert one.startswith(short)
        assert only_one("jobs", short, [other for other in every if other.startswith(short)]) == one


def test_a_beginning_of_several_names_them() -> None:
    with pytest.raises(Rejected, match=f"01a1 begins the ids of several jobs: {BURST[0]}, {BURST[1]}$"):
        only_one("jobs", "01a1", BURST)
    with pytest.raises(Rejected, match=r"and more$"):
        only_one("jobs", "job-", [f"job-{number}" for number in range(6)])
    assert only_one("jobs", "nightly", ["nightly", "nightly-2"]) == "nightly"
    assert only_one("jobs", "nope", []) is None


def test_latest_is_of_all_roles_or_of_one() -> None:
    assert latest_in("latest") == Latest(None)
    assert latest_in("latest", "support") == latest_in("support@latest") == Latest("support")
    assert latest_in("lates") is None
    with pytest.raises(Rejected, match="is not of the role airline"):
        latest_in("support@latest", "airline")


def test_command_on_the_latest_job_needs_a_role_where_several_have_jobs() -> None:
    example = Path("contracts/http/examples/coordinator/JobOut.json").read_bytes()
    job = msgspec.json.decode(example, type=JobOut)
    newest = msgspec.structs.replace(job, role="support", training_job_id=LATER)
    require_one_role([newest, msgspec.structs.replace(newest, training_job_id=RANDOM[0])])
    other = msgspec.structs.replace(job, role="airline", training_job_id=RANDOM[0])
    with pytest.raises(Rejected, match=r"of support, and airline have jobs too: name the role, `support@latest`"):
        require_one_role([newest, other])

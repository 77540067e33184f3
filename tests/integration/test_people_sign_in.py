"""A person signs in at a real issuer and works through console and coordinator, for the role of their group alone."""

from __future__ import annotations

import pytest

from ratchet.core.service.settings import SharedSettings
from tests.support.consoles import consoling
from tests.support.coordinator import ROLE, coordinating
from tests.support.issuer import issuing
from tests.support.running import connected, prepared_objects, prepared_warehouse


@pytest.mark.slow
async def test_person_signs_in_and_asks_for_training_of_their_role(shared_settings: SharedSettings) -> None:
    async with issuing() as issuer:
        shared = shared_settings.model_copy(update={"oidc": issuer.settings()})
        prepared_objects(shared)
        async with (
            prepared_warehouse(shared),
            connected(shared) as bus,
            coordinating(shared, bus) as there,
            consoling(shared, coordinator_url=str(there.api.base_url)) as browser,
        ):
            assert (await browser.get("/coordinator/v1/jobs")).status_code == 401
            begun = await browser.get("/sign-in")
            at_issuer = await browser.get(begun.headers["location"])
            assert (await browser.get(at_issuer.headers["location"])).headers["location"] == "/"
            assert (await browser.get("/v1/session")).json()["name"] == "ada@example.com"
            assert (await browser.get("/v1/loop")).status_code == 200
            asked = {"algorithm": "sft", "base_model": "org/model", "dataset": {"min_rows": 1}}
            origin = {"origin": str(browser.base_url).rstrip("/")}
            path = "/coordinator/v1/jobs?dry_run=true"
            mine = await browser.post(path, json={**asked, "role": ROLE}, headers=origin)
            assert mine.status_code not in (401, 403), mine.text
            other = await browser.post(path, json={**asked, "role": "sales"}, headers=origin)
            assert (other.status_code, "`train:sales`" in other.text) == (403, True)
            bearer = {"authorization": f"Bearer {issuer.token()}"}
            assert (await there.api.get("/v1/jobs", headers=bearer)).json() == {"jobs": [], "total": 0}
            assert (await there.api.get("/v1/keys", headers=bearer)).status_code == 403

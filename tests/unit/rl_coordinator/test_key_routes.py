"""Keys of the settings among the others: listed, and revoked only where they stand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import cast

import pytest

from ratchet.bus.connection import Bus
from ratchet.core.contract.http.keys import KeyIn
from ratchet.core.errors import NotFound, WrongState
from ratchet.core.rules.access import ANYONE
from ratchet.core.service.keys import setting_key
from ratchet.rl_coordinator.http.keys import KeyRoutes, KeyStore
from tests.support.fake_bus import fake_bus

NOW = datetime(2026, 3, 2, tzinfo=UTC)
OWN = setting_key("an operator's own key", "operators", ("admin",))


def routes() -> KeyRoutes:
    return KeyRoutes(KeyStore(cast("Bus", fake_bus()), [OWN]), lambda: NOW)


async def test_keys_of_the_settings_are_listed_beside_the_others() -> None:
    here = routes()
    made = await here.create_key(KeyIn(name="agents", scopes=["infer:support"]), ANYONE)
    first, second = (await here.list_keys()).keys
    assert (first.key_id, second.key_id) == (made.about.key_id, OWN.key_id)
    assert (second.name, second.created_by, second.state) == ("operators", "settings", "usable")


async def test_revoking_a_key_of_the_settings_names_what_to_change() -> None:
    here = routes()
    made = await here.create_key(KeyIn(name="root", scopes=["admin"]), ANYONE)
    with pytest.raises(WrongState, match="RATCHET_KEYS"):
        await here.revoke_key(OWN.key_id, ANYONE)
    with pytest.raises(NotFound, match="RATCHET_GATEWAY_API_KEYS"):
        await here.revoke_key("set_0123456789", ANYONE)
    with pytest.raises(NotFound, match="ratchet keys list"):
        await here.revoke_key("key_0123456789", ANYONE)
    assert (await here.revoke_key(made.about.key_id, ANYONE)).state == "revoked"

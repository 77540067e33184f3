"""Keys of the broker's users, before any broker reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.bus.nats_client import read_seed
from ratchet.core.errors import Conflict
from ratchet.core.service.files import lock_at
from ratchet.local.local_stack.broker_users import LOCK_FILE, BrokerUsers


def test_key_of_an_exchange_that_was_broken_off_is_not_taken_away(tmp_path: Path) -> None:
    users = BrokerUsers(tmp_path)
    users.add_agent("bot", ["helpdesk"])
    held = read_seed(users.seed_file("bot"))
    users.rotate("bot")  # and the command ends here: the broker did not answer
    with pytest.raises(Conflict, match="run `ratchet broker rotate bot` first"):
        users.retire("bot")
    assert len(users.user("bot").keys) == 2
    users.rotate("bot")
    users.release("bot")
    assert users.retire("bot") == 2
    assert read_seed(users.seed_file("bot")) != held


def test_a_second_command_at_once_is_refused_in_words(tmp_path: Path) -> None:
    users = BrokerUsers(tmp_path)
    users.add_agent("bot", ["helpdesk"])
    with lock_at(tmp_path / LOCK_FILE), pytest.raises(Conflict, match="another command changes the users in"):
        users.rotate("bot")
    assert len(users.user("bot").keys) == 1


def test_a_second_exchange_of_keys_at_once_is_refused_in_words(tmp_path: Path) -> None:
    users = BrokerUsers(tmp_path)
    with users.exchanging(), pytest.raises(Conflict, match="another command changes the users"), users.exchanging():
        pass
    with users.exchanging():
        users.keep_programs()

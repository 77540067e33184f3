"""The console in the local stack: `ratchet up` starts it, names its address last, and `ratchet open` leads there."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from ratchet.console.pages import SECURITY
from tests.support.command_lines import ratchet

pytestmark = pytest.mark.slow


@pytest.mark.timeout(600)
def test_up_ends_with_the_address_of_the_console_and_open_leads_there(tmp_path: Path) -> None:
    directory = ("--dir", str(tmp_path))
    up = ratchet("up", *directory, "--free-ports", "--only", "console", "--detach")
    try:
        assert up.returncode == 0, up.stderr
        name, url = up.stdout.splitlines()[-1].split()
        assert name == "console"
        assert ratchet("open", "--no-browser", *directory).stdout == f"{url}\n"
        services = json.loads(ratchet("status", "--json", *directory).stdout)["services"]
        assert services["console"]["url"] == url.rstrip("/")
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as http:
            page, loop = http.get("/"), http.get("/v1/loop").json()
            assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
            assert {name.decode() for name, _ in SECURITY} <= {*page.headers}
            assert http.get("/v1/session").json()["operate"] is True
        # It starts without the others, and says that they are away.
        assert {"coordinator", "deployer"} <= {*loop["unread"]}
        assert {service["state"] for service in loop["services"]} == {"unknown"}
    finally:
        down = ratchet("down", *directory)
    assert down.returncode == 0

"""`ratchet open`: the address of the console, and a browser where there is one."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path

from tests.support.command_lines import ratchet

URL = "http://127.0.0.1:8084"


def opened_with(browser: Path, *options: str) -> subprocess.CompletedProcess[str]:
    browser.chmod(browser.stat().st_mode | stat.S_IXUSR)
    return ratchet("open", "--dir", str(browser.parent), *options, RATCHET_CONSOLE_URL=URL, BROWSER=str(browser))


def test_the_address_is_printed_and_opened(tmp_path: Path) -> None:
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}\n')
    answer = opened_with(browser)
    assert (answer.returncode, answer.stdout) == (0, f"{URL}/\n"), answer.stderr
    assert opened.read_text() == f"{URL}/"


def test_no_browser_is_asked_for_none(tmp_path: Path) -> None:
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\ntouch {opened}\n")
    answer = opened_with(browser, "--no-browser", "--json")
    assert json.loads(answer.stdout) == {"url": f"{URL}/", "opened": False}
    assert not opened.exists()

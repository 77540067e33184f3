"""Debian's Chromium as `make chromium` unpacks it, or one that the system has."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Playwright

from tests.support.compose import REPOSITORY

DEBIAN = REPOSITORY / ".venv/debian"
UNPACKED = DEBIAN / "usr/lib/chromium/chromium-headless-shell"
BINARY = str(UNPACKED) if UNPACKED.exists() else shutil.which("chromium-headless-shell") or shutil.which("chromium")
"""None where there is no Chromium."""
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--force-color-profile=srgb")
"""Its sandbox wants rights that a container seldom has; it opens our own pages alone."""


@contextmanager
def launched(playwright: Playwright) -> Iterator[Browser]:
    """A browser without a window, with the libraries that were unpacked beside it."""
    folders = [str(path) for path in DEBIAN.glob("usr/lib/*-linux-gnu")]
    folders += [f"{folder}/pulseaudio" for folder in folders]
    environment: dict[str, str | float | bool] = {**os.environ}
    if UNPACKED.exists():
        environment["LD_LIBRARY_PATH"] = ":".join(folders)
    browser = playwright.chromium.launch(executable_path=BINARY, args=list(ARGUMENTS), env=environment)
    try:
        yield browser
    finally:
        browser.close()

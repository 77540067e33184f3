"""The documentation's pictures of the console: `make console-pictures`.

Those of a working loop are taken from a running stack: one that is named (`--url`, `--key`), or the one that `ratchet
demo` left in its directory, which is started for them. Those that need an odd state (a failed job, pairs) are
of the scene that the tests in a browser use (`--scene`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import msgspec
from PIL import Image
from playwright.sync_api import Browser, FilePayload, Page, sync_playwright

from ratchet.core.contract.http.jobs import JobOut
from tests.browser.chromium import launched
from tests.support.compose import REPOSITORY
from tests.support.console_training import DPO, FAILED, REPORT, RLOO, all_jobs
from tests.support.fake_console import OPERATOR, FakeConsole, Posted, serving

FOLDER = REPOSITORY / "docs" / "console"
WIDTH, HEIGHT = 1280, 860
COLOURS = 256
"""Pages have few; a palette is half of the size."""


def _ask_both(page: Page) -> None:
    page.get_by_label("What a user writes").fill("My parcel 4471 came broken. Can I have my money back?")
    page.get_by_role("button", name="Ask both").first.click()
    page.get_by_text("I have refunded").wait_for()


def _promote(page: Page) -> None:
    page.get_by_role("button", name="Promote", exact=True).click()
    page.get_by_label("Reason").fill("The figures suffice, and the sale begins tomorrow.")
    page.get_by_role("button", name="Show what it would do").click()
    page.get_by_text("It would do this").wait_for()


def _tokens(page: Page) -> None:
    page.get_by_role("button", name="Tokens").first.click()
    page.locator(".drawn").wait_for()
    page.mouse.wheel(0, -10_000)  # the click scrolled to the button


def _preview(page: Page) -> None:
    page.get_by_role("button", name="Preview the data").click()
    page.get_by_text("rows to learn from").wait_for()


def _cancel(page: Page) -> None:
    page.get_by_role("button", name="Cancel the job").click()
    page.get_by_role("dialog").wait_for()


def _stop(page: Page) -> None:
    first = page.get_by_role("button", name="Cancel the job")
    if first.count():
        first.click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    page.get_by_role("button", name="Stop now").click()
    page.get_by_role("dialog").wait_for()


def _report(page: Page) -> None:
    content = msgspec.json.encode(REPORT)
    report: FilePayload = {"name": "schema_report.json", "mimeType": "application/json", "buffer": content}
    page.get_by_label("The report of an export").set_input_files(report)
    page.get_by_text("93 % valid").wait_for()


def _nothing(_: Page) -> None:
    pass


Picture = tuple[str, int, Callable[[Page], None]]
"""The view, the picture's height, and what is done before it is taken."""

SCENE: Mapping[str, Picture] = {
    "act": ("rollouts/support", HEIGHT, _promote),
    "compare": ("policies/compare?role=support&left=7", HEIGHT, _ask_both),
    "statistics": ("statistics?by=agent", 1140, _nothing),
    "queue": ("annotation?role=support", HEIGHT, _nothing),
    "pairs": ("annotation?tab=pairs&role=support", HEIGHT, _nothing),
    "cancel": (f"training/{DPO}", HEIGHT, _cancel),
    "failed": (f"training/{FAILED}", HEIGHT, _nothing),
    "start": ("training?start=1&role=support", 940, _preview),
    "jobs": (f"training?one={RLOO}&other={DPO}", 1300, _nothing),
    "alignment": ("alignment?role=support", 1640, _report),
    "stop": (f"training/{DPO}", HEIGHT, _stop),
}
"""By file, of the tests' scene. The last one cancels its job."""


def of_stack(address: str, key: str | None) -> Mapping[str, Picture]:
    """By file, of what a running stack has: the role whose rollout began last, bundle, newest job, run with tools."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=address, headers=headers, timeout=60) as http:

        def read(path: str) -> Any:  # `Any`: each path has an answer of its own
            return http.get(path).raise_for_status().json()

        rollouts = read("/deployer/v1/rollouts")["rollouts"]
        rollout = max(rollouts, key=lambda each: (each["stable"] is not None, each["created_at"]))
        role, version = rollout["role"], rollout["candidate"]["version"]
        jobs = read(f"/coordinator/v1/jobs?role={role}")["jobs"]
        bundle = (
            {"bundle": (f"policies/{role}/{version}", 1480, _nothing)} if rollout["candidate"].get("bundle") else {}
        )
        if not jobs:  # a stack before a provider: nothing was trained
            return bundle
        job = max(jobs, key=lambda each: (each["state"] == "completed", each["created_at"]))["training_job_id"]
        solved = read(f"/v1/trajectories?role={role}&outcome=success&limit=200")["trajectories"]
    learned_from = [each for each in solved if each["arm"] in {"stable", "canary"}] or solved
    trajectory = max(learned_from, key=lambda each: each["calls"])["trajectory_id"]
    return {
        "loop": ("", 1240, _nothing),
        "rollouts": ("rollouts", HEIGHT, _nothing),
        "rollout": (f"rollouts/{role}", 1480, _nothing),
        "policies": ("policies", HEIGHT, _nothing),
        "policy": (f"policies/{role}/{version}", 1000, _nothing),
        "trajectories": (f"trajectories?role={role}", 1000, _nothing),
        "trajectory": (f"trajectories/{trajectory}?role={role}", 1500, _tokens),
        "training": ("training", HEIGHT, _nothing),
        "job": (f"training/{job}", 1300, _nothing),
        "data": (f"training/{job}?tab=data", 1100, _nothing),
        **bundle,
    }


def take(browser: Browser, address: str, key: str | None, name: str, picture: Picture, theme: str) -> Path:
    """One picture, as a small PNG."""
    view, height, prepare = picture
    scheme = "dark" if theme == "dark" else "light"
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": WIDTH, "height": height}, reduced_motion="reduce", timezone_id="UTC"
    )
    page = context.new_page()
    if key is not None:
        page.add_init_script(f"sessionStorage.setItem('ratchet.key', '{key}')")
    page.goto(f"{address}/#/{view}")
    page.locator(".loading").first.wait_for(state="detached")
    page.get_by_role("heading", level=1).wait_for()
    page.get_by_text("live", exact=True).wait_for()
    prepare(page)
    page.wait_for_timeout(300)  # charts measure their width
    whole = Image.open(BytesIO(page.screenshot())).convert("RGB")
    # Coverage, for the median of areas leaves out the colour of a small sign.
    small = whole.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    context.close()
    file = FOLDER / f"{name}-{theme}.png"
    small.save(file, optimize=True)
    return file


@contextmanager
def demo_stack(directory: Path) -> Iterator[str]:
    """The console's address of the stack that `ratchet demo` left in its directory; stopped at the end."""
    ratchet = [sys.executable, "-m", "ratchet.cli"]
    subprocess.run([*ratchet, "up", "--detach", "--free-ports", "--dir", str(directory)], check=True)
    try:
        asked = [*ratchet, "url", "console", "--dir", str(directory)]
        yield subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    finally:
        subprocess.run([*ratchet, "down", "--dir", str(directory)], check=True)


@contextmanager
def scene() -> Iterator[str]:
    """The address of a console before the tests' scene."""
    console = FakeConsole()
    path = "/deployer/v1/rollouts/support"
    promoted = {"state": "promoted", "weight": 1.0, "approval": "emergency_override"}
    console.answers[f"POST {path}/promote"] = msgspec.structs.replace(console.answers[f"GET {path}"], **promoted)  # pyright: ignore[reportArgumentType] - the scene's are structs
    job = f"/coordinator/v1/jobs/{DPO}"

    def cancel(_: Posted) -> JobOut:
        (running,) = (each for each in all_jobs(datetime.now(UTC)) if each.training_job_id == DPO)
        asked = msgspec.structs.replace(running, cancel_requested=True, cancelled_by="ada (k1)")
        console.answers[f"GET {job}"] = asked
        return asked

    console.answers[f"POST {job}/cancel"] = cancel
    with serving(console) as address:
        yield address


def take_all(address: str, key: str | None, pictures: Mapping[str, Picture], names: list[str]) -> None:
    """Those that are named, else all."""
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright, launched(playwright) as browser:
        for name in names or pictures:
            for theme in ("light", "dark"):
                file = take(browser, address, key, name, pictures[name], theme)
                sys.stdout.write(f"{file.relative_to(REPOSITORY)}\n")


def main(argv: list[str]) -> None:
    """All of them, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m tests.browser.pictures", description=__doc__)
    parser.add_argument("names", nargs="*", help="which of them; all where none is named")
    parser.add_argument("--url", help="the console of a running stack")
    parser.add_argument("--key", help="a key that may view, where the stack asks for one")
    parser.add_argument("--dir", type=Path, default=REPOSITORY / ".ratchet" / "demo", help="where the demo's stack is")
    parser.add_argument("--scene", action="store_true", help="the pictures of odd states, of the tests' scene")
    given = parser.parse_args(argv)
    if given.scene:
        with scene() as address:
            take_all(address, OPERATOR, SCENE, given.names)
    elif given.url:
        take_all(given.url, given.key, of_stack(given.url, given.key), given.names)
    else:
        with demo_stack(given.dir) as address:
            take_all(address, given.key, of_stack(address, given.key), given.names)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The documentation's pictures of the console, of the scene that its tests use: `make console-pictures`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path

import msgspec
from PIL import Image
from playwright.sync_api import Browser, FilePayload, Page, sync_playwright

from ratchet.core.contract.http.jobs import JobOut
from tests.browser.chromium import launched
from tests.support.compose import REPOSITORY
from tests.support.console_training import DPO, FAILED, REPORT, RLOO, all_jobs
from tests.support.console_trajectories import IDS
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
    page.get_by_role("button", name="Tokens").last.click()
    page.locator(".drawn").wait_for()


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


PICTURES: Mapping[str, tuple[str, int, Callable[[Page], None]]] = {
    "loop": ("", 1240, _nothing),
    "rollouts": ("rollouts", HEIGHT, _nothing),
    "rollout": ("rollouts/support", 1480, _nothing),
    "act": ("rollouts/support", HEIGHT, _promote),
    "policies": ("policies", HEIGHT, _nothing),
    "policy": ("policies/support/7", 1000, _nothing),
    "compare": ("policies/compare?role=support&left=7", HEIGHT, _ask_both),
    "trajectories": ("trajectories", 1000, _nothing),
    "trajectory": (f"trajectories/{IDS[1]}?role=support", 1500, _tokens),
    "queue": ("annotation?role=support", HEIGHT, _nothing),
    "pairs": ("annotation?tab=pairs&role=support", HEIGHT, _nothing),
    "training": ("training", HEIGHT, _nothing),
    "job": (f"training/{RLOO}", 1300, _nothing),
    "data": (f"training/{RLOO}?tab=data", 1100, _nothing),
    "cancel": (f"training/{DPO}", HEIGHT, _cancel),
    "failed": (f"training/{FAILED}", HEIGHT, _nothing),
    "start": ("training?start=1&role=support", 940, _preview),
    "jobs": (f"training?one={RLOO}&other={DPO}", 1300, _nothing),
    "alignment": ("alignment?role=support", 1640, _report),
    "stop": (f"training/{DPO}", HEIGHT, _stop),
}
"""By file: the view, the picture's height, and what is done before it is taken. The last one cancels its job."""


def take(browser: Browser, address: str, name: str, theme: str) -> Path:
    """One picture, as a small PNG."""
    view, height, prepare = PICTURES[name]
    scheme = "dark" if theme == "dark" else "light"
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": WIDTH, "height": height}, reduced_motion="reduce", timezone_id="UTC"
    )
    page = context.new_page()
    page.add_init_script(f"sessionStorage.setItem('ratchet.key', '{OPERATOR}')")
    page.goto(f"{address}/#/{view}")
    page.locator(".loading").first.wait_for(state="detached")
    page.get_by_role("heading", level=1).wait_for()
    page.get_by_text("live", exact=True).wait_for()
    prepare(page)
    page.wait_for_timeout(300)  # charts measure their width
    whole = Image.open(BytesIO(page.screenshot())).convert("RGB")
    # Coverage, for the median of areas leaves out the colour of a small sign.
    picture = whole.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    context.close()
    file = FOLDER / f"{name}-{theme}.png"
    picture.save(file, optimize=True)
    return file


def main(names: list[str]) -> None:
    """All of them, or those that are named."""
    FOLDER.mkdir(exist_ok=True)
    console = FakeConsole()
    path = "/deployer/v1/rollouts/support"
    promoted = {"state": "promoted", "weight": 1.0, "approval": "emergency_override"}
    console.answers[f"POST {path}/promote"] = msgspec.structs.replace(console.answers[f"GET {path}"], **promoted)  # pyright: ignore[reportArgumentType] - the scene's are structs
    job = f"/coordinator/v1/jobs/{DPO}"

    def cancel(_: Posted) -> JobOut:
        (running,) = (one for one in all_jobs(datetime.now(UTC)) if one.training_job_id == DPO)
        asked = msgspec.structs.replace(running, cancel_requested=True, cancelled_by="ada (k1)")
        console.answers[f"GET {job}"] = asked
        return asked

    console.answers[f"POST {job}/cancel"] = cancel
    with serving(console) as address, sync_playwright() as playwright, launched(playwright) as browser:
        for name in names or PICTURES:
            for theme in ("light", "dark"):
                sys.stdout.write(f"{take(browser, address, name, theme).relative_to(REPOSITORY)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])

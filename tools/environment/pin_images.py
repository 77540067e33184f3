"""Adds digests to images that docker-compose.yml and the Dockerfiles name by tag alone: `make pin-images`.

An image that has a digest keeps it; where its tag has another one by now, a line says so: the tag of a
version does not move.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

NAMED = re.compile(
    r"^(?:\s+image: |ARG (?:BASE|GRAFANA)=)(?P<image>[\w.:/-]+:[\w.-]+)(?:@(?P<digest>sha256:[0-9a-f]{64}))?$",
    re.MULTILINE,
)
OURS = "ratchet"
"""Images that are built here begin so."""
KINDS = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in ("oci.image.index.v1", "docker.distribution.manifest.list.v2", "oci.image.manifest.v1")
)
"""Of an image for several architectures first: its digest is good on all of them."""
TIMEOUT_S = 20


def place(image: str) -> tuple[str, str, str]:
    """Registry, repository and tag of an image, as Docker reads its name."""
    name, _, tag = image.rpartition(":")
    first, _, rest = name.partition("/")
    if rest and ("." in first or ":" in first):
        return first, rest, tag
    return "registry-1.docker.io", name if rest else f"library/{name}", tag


def digest(image: str) -> str:
    """What the registry has under the tag. Raises `URLError` where it does not answer, or does not know it."""
    registry, repository, tag = place(image)
    scheme = "http" if registry.startswith("127.0.0.1:") else "https"
    url, headers = f"{scheme}://{registry}/v2/{repository}/manifests/{tag}", {"Accept": KINDS}
    try:
        answer = urlopen(Request(url, headers=headers, method="HEAD"), timeout=TIMEOUT_S)  # noqa: S310 - ours
    except HTTPError as refused:
        challenge = dict(re.findall(r'(\w+)="([^"]*)"', refused.headers.get("WWW-Authenticate", "")))
        if refused.code != 401 or "realm" not in challenge:
            raise
        realm = challenge.pop("realm")
        with urlopen(f"{realm}?{urlencode(challenge)}", timeout=TIMEOUT_S) as token:  # noqa: S310 - the registry's own
            headers["Authorization"] = f"Bearer {json.load(token)['token']}"
        answer = urlopen(Request(url, headers=headers, method="HEAD"), timeout=TIMEOUT_S)  # noqa: S310
    with answer:
        return answer.headers["Docker-Content-Digest"]


def pin(text: str) -> tuple[str, list[str]]:
    """A file's text with the digests that it lacks, and messages about its images."""
    messages: list[str] = []

    def pinned(match: re.Match[str]) -> str:
        image, known = match["image"], match["digest"]
        if image.startswith(OURS):
            return match[0]
        try:
            now = digest(image)
        except (URLError, TimeoutError) as error:
            messages.append(f"{image}: the registry gave no digest ({error})")
            return match[0]
        if known and known != now:
            messages.append(f"{image}: its tag has {now} by now; {known} stays")
        return match[0] if known else f"{match[0]}@{now}"

    return NAMED.sub(pinned, text), messages


def files(root: Path) -> Iterator[Path]:
    """The files that name images."""
    yield root / "docker-compose.yml"
    yield from sorted([*root.glob("deploy/*/*.Dockerfile"), *root.glob("deploy/*/Dockerfile")])


def main(root: Path) -> int:
    """Write the digests; 1 where an image got none, or another one than it had."""
    lines: list[str] = []
    for path in files(root):
        text, messages = pin(old := path.read_text())
        lines += messages
        if text != old:
            path.write_text(text)
    sys.stdout.write("".join(f"{line}\n" for line in dict.fromkeys(lines)))
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(__file__).resolve().parents[2]))

"""HTTP tools: workers that are no models. They get JSON and answer JSON; a redirect is not followed."""

from __future__ import annotations

from urllib.parse import urlsplit

import httpx
import msgspec

from ratchet.bus.message import decode
from ratchet.core.contract.workflows import Worker
from ratchet.core.errors import Unavailable
from ratchet.core.service.http_client import AsyncApiClient, Peer
from ratchet.workflows.domain.asking import Answer, Asked, CallFailed
from ratchet.workflows.http_gateway import AGAIN, ANSWER_BYTES, checked_output, unanswered


def is_url(text: str) -> bool:
    """Whether a tool can be asked there."""
    try:
        url, parts = httpx.URL(text), urlsplit(text)
    except (httpx.InvalidURL, ValueError):
        return False
    return url.scheme in {"http", "https"} and bool(url.host) and parts.netloc.isprintable()


class _Written(msgspec.Struct, frozen=True):
    output: str


async def ask_tool(worker: Worker, asked: Asked) -> Answer:
    """Have a tool do a sub-task. Raises `CallFailed`."""
    assert worker.url is not None  # noqa: S101 - the registry holds workers with either
    if not is_url(worker.url):
        raise CallFailed(f"{worker.name} has no URL that can be asked", again=False, cost_usd=0.0)
    parts = urlsplit(worker.url)
    peer = Peer(worker.name, f"{parts.scheme}://{parts.netloc}", answer_bytes=ANSWER_BYTES)
    path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    body = {"task_type": asked.task_type, "input": asked.text}
    most = worker.cost_per_token
    async with AsyncApiClient(peer) as client:
        try:
            reply = await client.exchange("POST", path, body=body, timeout_s=worker.limits.timeout_s)
        except Unavailable as error:
            raise unanswered(str(error), error) from error
    if not 200 <= reply.status < 300:
        again = reply.status >= 500 or reply.status in AGAIN
        refused = 0.0 if reply.status < 500 else None
        raise CallFailed(f"{worker.name} answered {reply.status}", again=again, cost_usd=refused)
    try:
        text = decode(reply.content, _Written).output
    except msgspec.DecodeError as error:
        why = f'{worker.name} did not answer {{"output": TEXT}}'
        raise CallFailed(why, again=True, cost_usd=most) from error
    return Answer(checked_output(worker.name, text, most), most)

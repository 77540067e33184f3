"""A real Prometheus with the shipped configuration, its targets at loopback ports."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from ratchet.local.local_stack.ports import LOOPBACK, free_port
from ratchet.local.local_stack.program import Program
from tests.support.compose import REPOSITORY
from tests.support.running import http_client
from tests.support.servers import running

UNPACKED = REPOSITORY / ".venv/debian/usr/bin/prometheus"
"""The program that `make prometheus` unpacks."""
BINARY = shutil.which("prometheus") or (str(UNPACKED) if UNPACKED.exists() else None)
"""None where there is no Prometheus."""


class Prometheus:
    """Its query API."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an expression now. Fails for one that cannot be parsed."""
        return (await self._get("query", query=expression))["result"]

    async def rules(self) -> list[dict[str, Any]]:
        """The rules of all groups, with the `health` and the `state` of each."""
        return [rule for group in (await self._get("rules"))["groups"] for rule in group["rules"]]

    async def _get(self, path: str, **params: str) -> dict[str, Any]:
        async with http_client(base_url=self._url, trust_env=False) as client:
            answer = (await client.get(f"/api/v1/{path}", params=params)).json()
        assert answer["status"] == "success", f"{path} {params}: {answer.get('error')}"
        return answer["data"]


def configuration(ports: Mapping[str, int]) -> dict[str, Any]:
    """The shipped file; its service targets `name:9100` are scraped at the port of `name`, or of `*`.

    A name that the file asks DNS for is a fixed target here, where it has a port.
    """
    shipped = yaml.safe_load((REPOSITORY / "deploy/prometheus/prometheus.yml").read_text())
    shipped["global"] |= {"scrape_interval": "1s", "evaluation_interval": "1s"}
    shipped["rule_files"] = [str(REPOSITORY / "deploy/prometheus/alerts.yml")]
    job = next(job for job in shipped["scrape_configs"] if job["job_name"] == "ratchet")
    fixed = job["static_configs"][0]["targets"]
    fixed += [f"{name}:9100" for name in job["dns_sd_configs"][0]["names"] if name in ports]
    for name in (target.split(":")[0] for target in fixed):
        address = f"{LOOPBACK}:{ports[name] if name in ports else ports['*']}"
        job["relabel_configs"].append(
            {"source_labels": ["service"], "regex": name, "target_label": "__address__", "replacement": address}
        )
    return shipped


@contextmanager
def running_prometheus(directory: Path, ports: Mapping[str, int]) -> Iterator[Prometheus]:
    """Run it for the length of a block."""
    assert BINARY
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "prometheus.yml"
    config.write_text(yaml.safe_dump(configuration(ports)))
    port = free_port()
    url = f"http://{LOOPBACK}:{port}"
    program = Program(
        name="prometheus",
        command=(
            BINARY,
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address={LOOPBACK}:{port}",
        ),
        ready_url=f"{url}/-/ready",
        url=url,
        port=port,
    )
    with running(program, directory):
        yield Prometheus(url)

"""A real Prometheus and a real Alertmanager with the shipped configuration, their peers at loopback ports."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.local.local_stack.ports import LOOPBACK, free_port
from ratchet.local.local_stack.program import Program
from tests.support.compose import REPOSITORY
from tests.support.running import http_client
from tests.support.servers import running

UNPACKED = REPOSITORY / ".venv/debian/usr/bin"
"""The programs that `make prometheus` unpacks."""


def _program(name: str) -> str | None:
    return shutil.which(name) or (str(UNPACKED / name) if (UNPACKED / name).exists() else None)


BINARY, PROMTOOL, ALERTMANAGER = (_program(name) for name in ("prometheus", "promtool", "prometheus-alertmanager"))
"""None where there are none."""
ABSENT = "no Prometheus or Alertmanager here; `make prometheus` gets Debian's"
WITH_PROMETHEUS = pytest.mark.skipif(None in (BINARY, PROMTOOL, ALERTMANAGER), reason=ABSENT)


def concrete(query: str, every: str = "1m") -> str:
    """A panel's query with values for Grafana's variables, for a scrape every second. `every`: the chosen range."""
    query = query.replace("$__rate_interval", "10s").replace("$__range", every)
    return query.replace("$role", ".*").replace("$service", ".*")


class Prometheus:
    """Its query API."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an expression now. Fails for one that cannot be parsed."""
        return (await self._get("query", query=expression))["result"]

    async def values(self, expression: str, since: float, until: float) -> list[float]:
        """The values of all its series in these seconds since the epoch."""
        answer = await self._get("query_range", query=expression, start=f"{since}", end=f"{until}", step="5s")
        return [float(value) for series in answer["result"] for _, value in series["values"]]

    async def rules(self) -> list[dict[str, Any]]:
        """The rules of all groups, with the `health` and the `state` of each."""
        return [rule for group in (await self._get("rules"))["groups"] for rule in group["rules"]]

    async def alerts(self) -> list[dict[str, Any]]:
        """The alerts that are pending or firing."""
        return (await self._get("alerts"))["alerts"]

    async def _get(self, path: str, **params: str) -> dict[str, Any]:
        async with http_client(base_url=self._url, trust_env=False) as client:
            answer = (await client.get(f"/api/v1/{path}", params=params)).json()
        assert answer["status"] == "success", f"{path} {params}: {answer.get('error')}"
        return answer["data"]


def configuration(ports: Mapping[str, int], alertmanager: int | None = None) -> dict[str, Any]:
    """The shipped file; its service targets `name:9100` are scraped at the port of `name`, or of `*`.

    A name that the file asks DNS for is a fixed target here, where it has a port.
    """
    shipped = yaml.safe_load((REPOSITORY / "deploy/prometheus/prometheus.yml").read_text())
    shipped["global"] |= {"scrape_interval": "1s", "evaluation_interval": "1s"}
    shipped["rule_files"] = [str(REPOSITORY / "deploy/prometheus/alerts.yml")]
    managers = shipped["alerting"]["alertmanagers"]
    managers[0]["static_configs"][0]["targets"] = [f"{LOOPBACK}:{alertmanager}"] if alertmanager else []
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
def running_prometheus(
    directory: Path, ports: Mapping[str, int], alertmanager: int | None = None
) -> Iterator[Prometheus]:
    """Run it for the length of a block. `alertmanager`: the port of the one that it tells of alerts."""
    assert BINARY
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "prometheus.yml"
    config.write_text(yaml.safe_dump(configuration(ports, alertmanager)))
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


@contextmanager
def running_alertmanager(directory: Path, notifier: int, key: str) -> Iterator[int]:
    """Alertmanager with the shipped file, its notifier at this port, and pauses of a second; yields its port."""
    assert ALERTMANAGER
    directory.mkdir(parents=True, exist_ok=True)
    config = yaml.safe_load((REPOSITORY / "deploy/prometheus/alertmanager.yml").read_text())
    config["route"] |= {"group_wait": "1s", "group_interval": "1s", "repeat_interval": "1s"}
    (hook,) = config["receivers"][0]["webhook_configs"]
    hook["url"] = hook["url"].replace("notifier:9100", f"{LOOPBACK}:{notifier}")
    secret = hook["http_config"]["authorization"]["credentials_file"] = str(directory / "key")
    Path(secret).write_text(key)
    (directory / "alertmanager.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    program = Program(
        name="alertmanager",
        command=(
            ALERTMANAGER,
            f"--config.file={directory / 'alertmanager.yml'}",
            f"--storage.path={directory / 'data'}",
            f"--web.listen-address={LOOPBACK}:{port}",
            "--cluster.listen-address=",
        ),
        ready_url=f"http://{LOOPBACK}:{port}/-/ready",
        url=f"http://{LOOPBACK}:{port}",
        port=port,
        cwd=UNPACKED.parents[1] if str(UNPACKED / "prometheus-alertmanager") == ALERTMANAGER else None,
    )
    with running(program, directory):
        yield port

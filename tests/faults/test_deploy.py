"""The files of a deployment: they agree with each other, and Prometheus finds its metrics."""

import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from tests.faults.replicas import ROOT
from tests.support.http_client import Client
from tests.support.server_process import Server

DEPLOY = ROOT / "docs/deploy"


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    return content


def compose() -> dict[str, Any]:
    services: dict[str, Any] = read(ROOT / "docker-compose.yml")["services"]
    return services


def replicas() -> set[str]:
    return {f"{name}:8000" for name in compose() if name.startswith("server-")}


def test_nginx_and_prometheus_name_every_replica_of_the_compose_file() -> None:
    upstreams = re.findall(r"^\s+server ([\w:-]+) ", (DEPLOY / "nginx.conf").read_text(), re.MULTILINE)
    scraped = read(DEPLOY / "prometheus.yml")["scrape_configs"][0]["static_configs"][0]["targets"]
    assert set(upstreams) == set(scraped) == replicas()
    assert len(replicas()) == 2


def test_every_file_that_is_mounted_exists() -> None:
    volumes = [volume for service in compose().values() for volume in service.get("volumes", ())]
    mounted = [volume.split(":")[0] for volume in volumes if volume.startswith("./")]
    assert len(mounted) == 2
    for path in mounted:
        assert (ROOT / path).is_file()


def test_a_container_gets_more_time_to_stop_than_the_server_takes() -> None:
    for name in ("server-1", "server-2"):
        assert int(compose()[name]["stop_grace_period"].removesuffix("s")) >= 10 + 5


async def test_the_metrics_are_valid_and_include_those_that_operators_watch(database_url: str, tmp_path: Path) -> None:
    job = read(DEPLOY / "prometheus.yml")["scrape_configs"][0]
    replica = Server(database_url, tmp_path, {})
    await replica.start()
    try:
        async with Client(replica.url) as client:
            response = await client.get(job["metrics_path"])
    finally:
        await replica.close()
    assert response.headers["content-type"].startswith("text/plain")
    families = {family.name for family in text_string_to_metric_families(response.text)}
    assert families >= {
        "turnstream_turns_running",
        "turnstream_streams_open",
        "turnstream_first_delta_seconds",
        "turnstream_event_loop_lag_seconds",
    }

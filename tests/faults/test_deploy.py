"""The files of a deployment: they agree with each other, and Prometheus finds its metrics."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import httpx2
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from tests.faults.replicas import ROOT
from tests.support.http_client import Client, said
from tests.support.programs import path_of
from tests.support.server_process import Server, free_port
from turnstream.config import Section, Settings, variables
from turnstream.extension import sections
from turnstream.extensions.doctor.inspection import gaps
from turnstream.extensions.embedded.cluster import program
from turnstream.extensions.embedded.server import EmbeddedPostgres
from turnstream.storage.migrations import upgrade
from turnstream.storage.row_security import admit

DEPLOY = ROOT / "docs/deploy"
# The time of Prometheus's last scrape of the server.
SCRAPED = "max(timestamp(turnstream_turns_running))"

METRICS_TOKEN, TOKEN_FILE = "the token of Prometheus", "metrics-token"


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


def test_prometheus_has_the_token_that_the_servers_ask_for() -> None:
    secret = read(ROOT / "docker-compose.yml")["secrets"][TOKEN_FILE]
    assert compose()["prometheus"]["secrets"] == [TOKEN_FILE]
    assert read(DEPLOY / "prometheus.yml")["scrape_configs"][0]["authorization"] == {
        "credentials_file": f"/run/secrets/{TOKEN_FILE}"
    }
    for name in ("server-1", "server-2"):
        assert f"${{{secret['environment']}:?" in compose()[name]["environment"]["TURNSTREAM_METRICS_TOKEN"]


def test_every_file_that_is_mounted_exists() -> None:
    volumes = [volume for service in compose().values() for volume in service.get("volumes", ())]
    mounted = [volume.split(":")[0] for volume in volumes if volume.startswith("./")]
    assert len(mounted) == 4
    for path in mounted:
        assert (ROOT / path).is_file()


def test_every_service_has_a_bound_of_memory_and_of_logs() -> None:
    for name, service in compose().items():
        assert "mem_limit" in service, name
        assert {"max-size", "max-file"} <= set(service["logging"]["options"]), name


def test_every_service_has_a_version_and_a_check_of_its_health() -> None:
    for name, service in compose().items():
        if "build" in service:
            assert "\nHEALTHCHECK " in (ROOT / "Dockerfile").read_text(), name
        else:
            assert "healthcheck" in service, name
            assert re.fullmatch(r"[\w/]+:(v?\d+\.\d+\.\d+|1[0-9]\.\d+)", service["image"]), name


async def test_the_compose_file_gives_the_server_a_database_and_an_ordinary_role(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "postgres") as dsn:
        server = urlsplit(dsn)
        (host,), (port,) = (parse_qs(server.query)[name] for name in ("host", "port"))
        environment = {
            "PATH": f"{Path(program('psql')).parent}:{os.defpath}",
            "PGHOST": host,
            "PGPORT": port,
            "SERVER_POSTGRES_PASSWORD": "it's secret",
            "API_POSTGRES_PASSWORD": "it's 'another'",
        }
        for _ in range(2):  # the second run upgrades a database that was created before the role of the API existed
            subprocess.run([DEPLOY / "create-database.sh"], env=environment, check=True, stdout=subprocess.DEVNULL)
        url = server._replace(netloc="turnstream@", path="/turnstream").geturl()
        await asyncio.to_thread(upgrade, url)
        connection = await asyncpg.connect(url)
        assert await connection.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is False
        assert await connection.fetchval("SELECT count(*) FROM turns") == 0
        await connection.close()
        api_url = server._replace(netloc="turnstream_api@", path="/turnstream").geturl()
        await admit(url, api_url)
        assert await gaps(url, api_url) == []


def test_no_password_has_a_default_and_every_deployment_has_a_role_for_the_api() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert re.findall(r"\$\{\w+:-[^}]*\}", text) == []
    for service in compose().values():
        if "build" in service:
            assert "//turnstream_api:${" in service["environment"]["TURNSTREAM_API_DATABASE_URL"]
    config, *_ = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    assert {"DATABASE_URL_FILE", "TURNSTREAM_API_DATABASE_URL_FILE"} <= config["data"].keys()


def test_the_kubernetes_manifests_follow_the_schema() -> None:
    manifests = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    for manifest in manifests:
        kubernetes_validate.validate(manifest, "1.37", strict=True)
    kinds = [manifest["kind"] for manifest in manifests]
    assert {"Deployment", "Service", "Job", "PodDisruptionBudget", "HorizontalPodAutoscaler"} <= set(kinds)


def test_the_job_of_the_first_token_comes_before_the_first_server(empty_database_url: str, tmp_path: Path) -> None:
    """On a database without tables, the containers of the job run in order, and print only the token."""
    (job,) = yaml.safe_load_all((DEPLOY / "kubernetes-first-token.yaml").read_text())
    kubernetes_validate.validate(job, "1.37", strict=True)
    (migrations,) = (
        each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()) if each["kind"] == "Job"
    )
    pod, other = job["spec"]["template"]["spec"], migrations["spec"]["template"]["spec"]
    assert (pod["volumes"], pod["securityContext"]) == (other["volumes"], other["securityContext"])
    (tmp_path / "database-url").write_text(empty_database_url)
    printed = ""
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"] == other["containers"][0]["securityContext"]
        variables = {
            each["name"]: each["value"].replace("/run/secrets/turnstream", str(tmp_path)) for each in container["env"]
        }
        environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"} | variables
        printed = subprocess.run(
            [Path(sys.executable).with_name("turnstream"), *container["args"]],
            env=environment,
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    assert printed.startswith("ts_")
    assert len(printed.split()) == 1


def test_a_pod_gets_more_time_to_stop_than_the_server_takes() -> None:
    config, deployment = (
        next(each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()) if each["kind"] == kind)
        for kind in ("ConfigMap", "Deployment")
    )
    pod = deployment["spec"]["template"]["spec"]
    waits = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= waits + int(config["data"]["TURNSTREAM_GRACE_PERIOD"]) + 10
    every: list[type[Section]] = [Settings, *sections()]
    names = {name for section in every for name in variables(section).values()}
    assert {name.removesuffix("_FILE") for name in config["data"]} <= names


@pytest.mark.needs("systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "turnstream.service").read_text().replace("/opt/turnstream/bin/turnstream", "/bin/true")
    (tmp_path / "turnstream.service").write_text(unit)
    found = subprocess.run(
        [path_of("systemd-analyze"), "verify", "--man=no", tmp_path / "turnstream.service"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


async def test_a_supervisor_gets_notices_of_the_start_and_the_stop_of_the_server(
    database_url: str, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.setblocking(False)
        server = Server(database_url, tmp_path, {"NOTIFY_SOCKET": str(tmp_path / "notify")})
        await server.start()
        assert await asyncio.get_running_loop().sock_recv(supervisor, 100) == b"READY=1"
        assert await server.terminate() == 0
        assert await asyncio.get_running_loop().sock_recv(supervisor, 100) == b"STOPPING=1"


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


def _filled(query: str) -> str:
    """Returns the query of a panel, as Grafana sends it for all replicas."""
    return query.replace("$__rate_interval", "1m").replace("$instance", ".*")


def metric_of(panel: dict[str, Any]) -> str:
    """Returns the metric family at the beginning of a panel's description. A row of panels has an empty description."""
    return str(panel.get("description", "")).partition(":")[0].removesuffix("_total")


@pytest.mark.needs("prometheus")
async def test_prometheus_finds_data_for_every_panel_of_the_dashboard_and_takes_the_alarms(
    database_url: str, tmp_path: Path
) -> None:
    replica = Server(database_url, tmp_path, {"TURNSTREAM_METRICS_TOKEN": METRICS_TOKEN})
    await replica.start()
    try:
        async with Client(replica.url) as client, prometheus(tmp_path, replica.url.removeprefix("http://")) as query:
            for words in ("/call doc_list {}", "/fail overloaded", "/say Hello."):
                asked = await client.json("POST", "/api/turns", 201, json=said(words))
                await client.events(asked["stream_url"])
            for _ in range(3):  # a rate needs scrapes after the turns
                ((_, seen),) = [each["value"] for each in (await query("query", query=SCRAPED))["result"]]
                while not (await query("query", query=f"{SCRAPED} > {seen}"))["result"]:
                    pass
            token = {"Authorization": f"Bearer {METRICS_TOKEN}"}
            shown = text_string_to_metric_families((await client.get("/metrics", headers=token)).text)
            with_data = {family.name for family in shown if family.samples}
            panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
            empty = [
                panel["title"]
                for panel in panels
                for target in panel.get("targets", ())
                if metric_of(panel) in with_data and not (await query("query", query=_filled(target["expr"])))["result"]
            ]
            (rules,) = (await query("rules"))["groups"]
            while any(rule["health"] == "unknown" for rule in rules["rules"]):
                (rules,) = (await query("rules"))["groups"]
    finally:
        await replica.close()
    assert empty == []
    assert len({metric_of(panel) for panel in panels} & with_data) > 25
    assert {rule["health"] for rule in rules["rules"]} == {"ok"}


@asynccontextmanager
async def prometheus(folder: Path, target: str) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Runs a Prometheus with the files of docs/deploy, which scrapes the target each second. Yields its API."""
    port, text = free_port(), (DEPLOY / "prometheus.yml").read_text()
    text = re.sub(r"targets: \[.*\]", f"targets: ['{target}']", text)
    text = text.replace("scrape_interval: 15s", "scrape_interval: 1s\n  evaluation_interval: 1s")
    text = text.replace("alerts.yml", str(DEPLOY / "alerts.yml"))
    text = text.replace(f"/run/secrets/{TOKEN_FILE}", str(folder / TOKEN_FILE))
    (folder / TOKEN_FILE).write_text(METRICS_TOKEN)
    (folder / "prometheus.yml").write_text(text)
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            path_of("prometheus"),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'series'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
    try:
        async with Client(f"http://127.0.0.1:{port}") as client:

            async def query(path: str, **parameters: str) -> Any:
                return (await client.json("GET", f"/api/v1/{path}", params=parameters))["data"]

            while True:
                assert process.returncode is None, (folder / "prometheus.log").read_text()
                with suppress(httpx2.TransportError, AssertionError):  # Prometheus does not listen yet, or is not ready
                    if (await query("query", query=SCRAPED))["result"]:
                        break
                await asyncio.sleep(0.05)
            yield query
    finally:
        process.terminate()
        await process.wait()

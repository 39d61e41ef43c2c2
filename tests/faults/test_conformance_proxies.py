"""The proxies of docs/deploy, tested with the conformance kit."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.faults.proxy import Proxy, caddy, haproxy, nginx
from tests.support.server_process import free_port
from turnstream_conformance.proxy import examine
from turnstream_conformance.report import Report

PAGE = (Path(__file__).parents[2] / "app/turnstream_conformance/README.md").read_text(encoding="utf-8")
CUT = "a body that is cut off is not completed"
LIVES = 1.5  # seconds; the measurements on the page took longer


async def examined(url: str, port: int) -> Report:
    return await examine(url, "127.0.0.1", port, LIVES, LIVES, LIVES / 4)


def failed(report: Report) -> dict[str, str]:
    return {result.promise: result.text for result in report.results if result.status == "failed"}


Start = Callable[[Path, Sequence[str]], AbstractAsyncContextManager[str | Proxy]]


@pytest.mark.parametrize(
    ("start", "known"),
    [
        pytest.param(nginx, set(), id="nginx", marks=pytest.mark.needs("nginx")),
        pytest.param(haproxy, set(), id="HAProxy", marks=pytest.mark.needs("HAProxy")),
        pytest.param(caddy, {CUT}, id="Caddy", marks=pytest.mark.needs("Caddy")),  # version 2.6, as on the page
    ],
)
async def test_a_proxy_as_it_is_documented_holds_all_promises(start: Start, known: set[str], tmp_path: Path) -> None:
    port = free_port()
    async with start(tmp_path, [f"127.0.0.1:{port}"] * 2) as proxy:
        report = await examined(proxy if isinstance(proxy, str) else proxy.url, port)
    assert failed(report).keys() <= known, report.as_text()
    assert [result.promise for result in report.results if f"| {result.promise} |" not in PAGE] == []


@pytest.mark.needs("nginx")
async def test_a_proxy_that_buffers_compresses_and_is_impatient_is_found_out(tmp_path: Path) -> None:
    port = free_port()
    wrong = (
        "proxy_ignore_headers X-Accel-Buffering; proxy_hide_header Retry-After; gzip on; gzip_types text/event-stream;"
    )
    async with nginx(tmp_path, [f"127.0.0.1:{port}"] * 2, read_timeout=1, further=wrong) as proxy:
        report = await examined(proxy.url, port)
    assert report.exit_code == 1
    found = failed(report)
    for promise in (
        "the first bytes come at once",
        "each delta is passed on at once",
        "streams are not compressed, and keep their headers",
        "204, 401 and 503 are passed on as they are",
        "silence ends no stream",
    ):
        assert promise in found, report.as_text()

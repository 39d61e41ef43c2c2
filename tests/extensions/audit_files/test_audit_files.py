"""Audit files: the verification detects changed, deleted and inserted entries, both in the file and in the database."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner

from tests.support.harness import OWNER, Harness
from turnstream.cli import commands
from turnstream.domain.errors import ConfigError
from turnstream.domain.identity import Identity
from turnstream.libraries.erasure.erasure import erase_owner
from turnstream.storage.owners.audit import AuditTrail
from turnstream.storage.owners.tokens import Tokens

Call = Callable[..., Coroutine[Any, Any, str]]


@pytest.fixture
def call(harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs `turnstream audit`. Raises the exception that the command raised."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", {**os.environ, "DATABASE_URL": harness.url})

    async def run(*arguments: str) -> str:
        done = await asyncio.to_thread(CliRunner().invoke, commands, ["audit", *arguments])
        if done.exception is not None:
            raise done.exception
        return done.stdout.strip()

    return run


@pytest.fixture
async def file(harness: Harness, call: Call, tmp_path: Path) -> Path:
    """Exports audit entries twice. Returns the audit file, which then has five entries."""
    trail = AuditTrail(harness.database)
    await Tokens(harness.database).create("phone", Identity(OWNER))
    await trail.note("owner.imported", "Zoë\u2028", {"chats": 2, "whole": True})
    await call("export", "audit.jsonl")
    await trail.note("login.refused", None, {"address": "192.0.2.1"}, {"address": "192.0.2.2"})
    await call("export", "audit.jsonl")
    return tmp_path / "audit.jsonl"


async def _changed(harness: Harness, sql: str) -> None:
    async with harness.locker() as locker:
        await locker.connection.execute(sql)


async def test_an_unchanged_trail_is_verified_and_each_entry_is_exported_once(call: Call, file: Path) -> None:
    assert "5 entries" in await call("verify", "audit.jsonl")
    ids = [json.loads(line)["id"] for line in file.read_text().split("\n")[:-1]]
    assert ids == sorted(set(ids))
    assert len(ids) == 5
    assert file.stat().st_mode & 0o777 == 0o600


async def test_the_printed_head_finds_a_file_that_was_cut_off_or_replaced(call: Call, file: Path) -> None:
    head = await call("export", "audit.jsonl")
    assert "entries" in await call("verify", "audit.jsonl", "--head", head)
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(ConfigError, match=f"no line with the hash {head}"):
        await call("verify", "audit.jsonl", "--head", head)


@pytest.mark.parametrize("line", range(4))
async def test_a_changed_line_breaks_the_chain_behind_it(call: Call, file: Path, line: int) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b'"kind":"', b'"kind":"x')
    file.write_bytes(b"".join(lines))
    with pytest.raises(ConfigError, match=rf"differs from line {line + 1}|Line {line + 2} does not continue"):
        await call("verify", "audit.jsonl")
    with pytest.raises(ConfigError, match=f"Line {line + 2} does not continue the chain"):
        await call("export", "audit.jsonl")


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("UPDATE audit SET actor = 'mallory' WHERE kind = 'token.created'", "differs from line 1"),
        ("UPDATE audit SET detail = '{}' WHERE kind = 'owner.imported'", "differs from line 2"),
        ("DELETE FROM audit WHERE kind = 'owner.imported'", "lacks the entry"),
        ("UPDATE audit SET created_at = '2001-01-01' WHERE kind = 'token.created'", "differs from line 1"),
    ],
)
async def test_a_change_of_the_trail_is_found(harness: Harness, call: Call, file: Path, sql: str, found: str) -> None:
    await _changed(harness, sql)
    with pytest.raises(ConfigError, match=found):
        await call("verify", "audit.jsonl")


async def test_an_entry_that_was_inserted_later_is_found(harness: Harness, call: Call, file: Path) -> None:
    rolled_back = "INSERT INTO audit (kind, detail) VALUES ('turn.stopped', '{}')"
    async with harness.locker() as locker, locker.holding(rolled_back):
        free = await locker.connection.fetchval("SELECT max(id) FROM audit")
    await call("export", "audit.jsonl")
    await AuditTrail(harness.database).note("turn.stopped", OWNER, {})
    await call("export", "audit.jsonl")
    await call("verify", "audit.jsonl")
    await _changed(
        harness,
        "INSERT INTO audit (id, kind, owner, detail) OVERRIDING SYSTEM VALUE"
        f" VALUES ({free}, 'grant.given', 'ada', '{{}}')",
    )
    with pytest.raises(ConfigError, match=f"has the entry {free}, which did not exist"):
        await call("verify", "audit.jsonl")


async def test_entries_that_retention_removes_and_an_erased_owner_leave_the_file_valid(
    harness: Harness, call: Call, tmp_path: Path
) -> None:
    await Tokens(harness.database).create("phone", Identity(OWNER))
    await _changed(
        harness,
        "INSERT INTO audit (kind, detail, created_at) SELECT kind, '{}', now() - make_interval(days => days)"
        " FROM (VALUES ('owner.moved', 366), ('login.refused', 31)) AS old (kind, days)",
    )
    await call("export", "audit.jsonl")
    await _changed(harness, "DELETE FROM audit WHERE created_at < now() - interval '30 days'")
    await erase_owner(harness.database, OWNER, lambda _turn: 0, 0)
    assert "3 entries" in await call("verify", "audit.jsonl")
    await call("export", "audit.jsonl")
    assert "6 entries" in await call("verify", "audit.jsonl")


async def test_an_export_that_was_killed_within_a_line_is_continued(call: Call, file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:-10])
    await call("export", "audit.jsonl")
    assert file.read_bytes().startswith(whole)
    await call("verify", "audit.jsonl")


async def test_an_entry_whose_transaction_is_open_during_an_export_is_not_skipped(
    harness: Harness, call: Call, file: Path
) -> None:
    async with harness.locker() as locker:
        async with locker.holding("INSERT INTO audit (kind, detail) VALUES ('turn.stopped', '{}')", commit=True):
            await AuditTrail(harness.database).note("turn.requeued", OWNER, {})
            exporting = asyncio.create_task(call("export", "audit.jsonl"))
            await locker.waiting()
        await exporting
    kinds = [json.loads(line)["kind"] for line in file.read_text().split("\n")[:-1]]
    assert kinds[-2:] == ["turn.stopped", "turn.requeued"]
    await call("verify", "audit.jsonl")


@pytest.mark.parametrize("content", [b"a letter\n", b"[]\n", b"{}\n", b'{"id":"x","previous":"' + b"0" * 64 + b'"}\n'])
async def test_another_file_is_refused_and_stays(call: Call, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(ConfigError, match="Line 1"):
        await call("export", "other")
    assert (tmp_path / "other").read_bytes() == content


@dataclass
class Collector:
    """Receives OpenTelemetry records over a real socket. With another `status` than 200, it refuses them."""

    url: str = ""
    status: int = 200
    answer: dict[str, Any] = field(default_factory=dict)
    received: list[dict[str, Any]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        assert request.headers["content-type"] == "application/json"
        assert request.headers["authorization"] == "Bearer of news"
        body = await request.json()
        if self.status == 200:
            self.received += body["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
        return web.json_response(self.answer, status=self.status)


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    collector, app = Collector(), web.Application()
    app.router.add_post("/v1/logs", collector.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/logs"
    monkeypatch.setitem(os.environ, "OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20of%20news")
    yield collector
    await runner.cleanup()


async def test_a_collector_gets_each_entry_with_the_chain(
    harness: Harness, call: Call, tmp_path: Path, collector: Collector
) -> None:
    await Tokens(harness.database).create("phone", Identity(OWNER))
    head = await call("export", "audit.jsonl", "--otlp", collector.url)
    await AuditTrail(harness.database).note("owner.imported", "Zoë", {"chats": 2})
    head = await call("export", "audit.jsonl", "--otlp", collector.url)
    lines, previous = (tmp_path / "audit.jsonl").read_text().splitlines(), "0" * 64
    assert [record["body"]["stringValue"] for record in collector.received] == lines
    for record in collector.received:
        line, values = record["body"]["stringValue"], {each["key"]: each["value"] for each in record["attributes"]}
        entry = json.loads(line)
        assert values["audit.previous"] == {"stringValue": previous}
        previous = sha256(f"{line}\n".encode()).hexdigest()
        assert values["audit.hash"] == {"stringValue": previous}
        assert values["audit.id"] == {"intValue": str(entry["id"])}
        assert record["eventName"] == entry["kind"]
        seconds = datetime.fromisoformat(entry["created_at"]).timestamp()
        assert int(record["timeUnixNano"]) == pytest.approx(seconds * 1e9, rel=1e-12)
    assert previous == head
    assert f"{len(lines)} entries" in await call("verify", "audit.jsonl")


async def test_entries_rejected_by_a_collector_are_sent_again(
    harness: Harness, call: Call, tmp_path: Path, collector: Collector
) -> None:
    await Tokens(harness.database).create("phone", Identity(OWNER))
    collector.status = 503
    with pytest.raises(ConfigError, match="has answered 503"):
        await call("export", "audit.jsonl", "--otlp", collector.url)
    collector.status, collector.answer = 200, {"partialSuccess": {"rejectedLogRecords": "1"}}
    with pytest.raises(ConfigError, match="has rejected 1 records"):
        await call("export", "audit.jsonl", "--otlp", collector.url)
    with pytest.raises(ConfigError, match="cannot be reached"):
        await call("export", "audit.jsonl", "--otlp", "http://127.0.0.1:9/v1/logs")
    assert (tmp_path / "audit.jsonl").read_bytes() == b""
    collector.answer = {}
    collector.received.clear()
    await call("export", "audit.jsonl", "--otlp", collector.url)
    assert len(collector.received) == len((tmp_path / "audit.jsonl").read_text().splitlines()) > 0

"""The audit trail: tokens, approvals, grants, erasures, refused logins."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner

from tests.support.harness import OWNER, Harness
from tests.support.http_server import serving
from tests.support.sweeping import swept
from turnstream.cli import commands
from turnstream.domain.asks import AskAnswer, digest_of
from turnstream.domain.blocks import Block
from turnstream.domain.identity import Identity
from turnstream.engine.upkeep.refusals import RefusedLogins
from turnstream.kit.ids import new_id
from turnstream.libraries.audit_entries import AuditEntry, newest_entries
from turnstream.storage.chats.grants import Grants
from turnstream.storage.owners.audit import AuditTrail
from turnstream.storage.owners.tokens import Tokens
from turnstream.storage.rows import to_json


async def _entries(harness: Harness, kind: str | None = None) -> Sequence[AuditEntry]:
    return [*reversed(await newest_entries(harness.database, None, kind, 1, 1000))]


async def test_tokens_that_come_and_go_are_in_the_trail(harness: Harness) -> None:
    tokens = Tokens(harness.database)
    await tokens.create("phone", Identity(OWNER))
    await tokens.delete("phone")
    created, deleted = await _entries(harness)
    assert [(entry.kind, entry.owner) for entry in (created, deleted)] == [
        ("token.created", OWNER),
        ("token.deleted", OWNER),
    ]
    assert created.detail == deleted.detail
    assert created.detail["name"] == "phone"


@pytest.mark.parametrize("decision", ["approve", "deny", "expired"])
async def test_an_approval_is_in_the_trail_with_its_exact_input(harness: Harness, decision: Any) -> None:
    asked = await harness.ask()
    call = Block(1, 1, 1, "tool_use", '{"to":"ada"}', tool_use_id="t", name="send")
    answer = AskAnswer(decision, input='{"to":"bob"}')
    async with harness.locker() as locker:
        await locker.connection.execute(
            "INSERT INTO asks (turn_id, round, tool_use_id, name, kind, digest, attempt)"
            " VALUES ($1, 1, 't', 'send', 'approval', $2, 1)",
            asked.turn,
            digest_of(call),
        )
        update = "UPDATE asks SET answer = $2, answered_at = now() WHERE turn_id = $1"
        await locker.connection.execute(update, asked.turn, to_json(answer))
        await locker.connection.execute(update, asked.turn, to_json(answer))
        entries = await _entries(harness)
        if decision == "expired":
            assert entries == []
            return
        (entry,) = entries
        assert entry.kind == {"approve": "approval.given", "deny": "approval.denied"}[decision]
        assert entry.owner == OWNER
        assert (entry.detail["turn"], entry.detail["tool"]) == (str(asked.turn), "send")
        assert entry.detail["input_digest"] == digest_of(call)
        assert entry.detail["changed_input_sha256"] == await locker.connection.fetchval(
            "SELECT encode(sha256($1), 'hex')", b'{"to":"bob"}'
        )
        await locker.connection.execute("DELETE FROM chats")
    assert len(await _entries(harness)) == 1  # the entry outlasts the chat


async def test_grants_are_in_the_trail(harness: Harness) -> None:
    asked, grant = await harness.ask(), new_id()
    async with harness.locker() as locker:
        await locker.connection.execute(
            "INSERT INTO grants (id, chat_id, tool, digest, turn_id, tool_use_id)"
            " VALUES ($1, $2, 'send', 'd', $3, 't')",
            grant,
            asked.chat,
            asked.turn,
        )
    for _ in range(2):
        await Grants(harness.database).revoke(OWNER, asked.chat, grant)
    entries = await _entries(harness, "grant")
    assert [(entry.kind, entry.detail["grant"]) for entry in entries] == [
        ("grant.given", str(grant)),
        ("grant.revoked", str(grant)),
    ]


async def test_a_flood_of_refused_logins_is_a_few_entries(harness: Harness) -> None:
    refusals = RefusedLogins(AuditTrail(harness.database), pause=0)
    for number in range(10_000):
        refusals.note(f"2001:db8::{number:x}", "a token")
        refusals.note("192.0.2.1", "no token")
    task = asyncio.create_task(refusals.run())
    while not (entries := await _entries(harness)):  # noqa: ASYNC110, the writer has no event for it
        await asyncio.sleep(0.01)
    task.cancel()
    assert len(entries) == 11
    assert {entry.kind for entry in entries} == {"login.refused"}
    counts = {entry.detail["address"]: entry.detail["count"] for entry in entries}
    assert counts["192.0.2.1"] == 10_000
    assert sum(counts.values()) == 20_000
    assert counts["others"] == 10_000 - 9


async def test_a_refused_request_is_counted(database_url: str) -> None:
    async with serving(database_url) as server:
        await server.token("ada")
        counted = server.app.state.services.note_refusal.__self__._counts
        async with httpx2.AsyncClient(base_url=server.url, trust_env=False) as nobody:
            assert (await nobody.get("/api/chats")).status_code == 401
            for token in ("ts_x", "ts_y"):
                headers = {"Authorization": f"Bearer {token}"}
                assert (await nobody.get("/api/chats", headers=headers)).status_code == 401
        assert counted == {("127.0.0.1", "no token"): 1, ("127.0.0.1", "a token"): 2}


async def test_old_entries_are_swept_and_refused_logins_before(harness: Harness) -> None:
    trail = AuditTrail(harness.database)
    async with harness.locker() as locker:
        await locker.connection.execute(
            "INSERT INTO audit (kind, detail, created_at) SELECT kind, '{}', now() - make_interval(days => days)"
            " FROM unnest(ARRAY['owner.erased', 'login.refused']) AS kind, unnest(ARRAY[1, 31, 366]) AS days"
        )
    assert [await swept(trail.sweep(365, 30)) for _ in range(2)] == [3, 0]
    kept = [entry.kind for entry in await newest_entries(harness.database, None, None, 1000, 10)]
    assert sorted(kept) == ["login.refused", "owner.erased", "owner.erased"]


async def test_the_command_prints_actors_and_their_actions(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", {**os.environ, "DATABASE_URL": harness.url, "USER": "grace", "LOGNAME": "grace"})
    monkeypatch.setattr("turnstream.extensions.owner_commands.owners.BELIEVED", 0)

    async def call(*arguments: str) -> list[str]:
        done = await asyncio.to_thread(CliRunner().invoke, commands, arguments)
        assert done.exit_code == 0, done.output
        return done.stdout.splitlines()

    for name in ("phone", "laptop"):
        await call("tokens", "create", name, "--owner", OWNER)
    await call("owners", "export", OWNER, "ada.tar")
    await call("owners", "erase", OWNER, "--yes")
    lines = [line.split("\t") for line in await call("audit", "--owner", OWNER)]
    kinds = ["owner.erased", *["token.deleted"] * 2, "owner.exported", *["token.created"] * 2]
    assert [line[1] for line in lines] == kinds
    assert all(line[2] == OWNER and line[3].startswith("grace@") for line in lines)
    assert len(await call("audit", "--kind", "token")) == 4
    assert len(await call("audit", "--limit", "2")) == 2
    assert await call("audit", "--owner", "bob") == []

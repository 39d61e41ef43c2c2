"""Chats and uploads are deleted when they reach a certain age."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from tests.support.harness import OWNER, Asked, Harness
from tests.support.sweeping import id_of, swept
from turnstream.config import Settings
from turnstream.extensions import retention
from turnstream.extensions.documents.store import Documents
from turnstream.extensions.retention.aged import AGED_UPLOADS, old_chats
from turnstream.setup.engine import sweeps_of
from turnstream.storage.owners.uploads import Uploads
from turnstream.storage.retention import Sweeps, aged_rows

DAYS = 30


async def _age(harness: Harness, asked: Asked, days: float, status: str = "complete") -> None:
    async with harness.locker() as locker:
        await locker.connection.execute(
            "UPDATE chats SET updated_at = now() - $2::interval WHERE id = $1", asked.chat, timedelta(days=days)
        )
        if status != "queued":
            ends = "status = 'complete', stop_reason = 'end_turn', ended_at = now()"
            changes = ends if status == "complete" else "status = 'waiting', attempt = 1, asked = 1"
            await locker.connection.execute(f"UPDATE turns SET {changes} WHERE id = $1", asked.turn)


async def _chats(harness: Harness) -> set[UUID]:
    async with harness.locker() as locker:
        return {row["id"] for row in await locker.connection.fetch("SELECT id FROM chats")}


async def test_chats_are_deleted_by_their_last_change(harness: Harness) -> None:
    old, fresh, at_work, waiting = await harness.ask(), await harness.ask(), await harness.ask(), await harness.ask()
    await _age(harness, old, DAYS + 1)
    await _age(harness, fresh, DAYS - 1)
    await _age(harness, at_work, DAYS + 1, "queued")
    await _age(harness, waiting, DAYS + 1, "waiting")
    assert await swept(old_chats(harness.database, DAYS)) == 2
    assert await _chats(harness) == {fresh.chat, at_work.chat}


async def test_old_chats_of_many_owners_are_deleted_in_small_steps(harness: Harness) -> None:
    async with harness.locker() as locker:
        await locker.connection.execute(
            """INSERT INTO chats (id, owner, updated_at)
            SELECT gen_random_uuid(), 'owner ' || owner, now() - make_interval(days => CASE number % 3 WHEN 0 THEN 1
            ELSE 60 END) FROM generate_series(1, 230) AS owner, generate_series(1, CASE owner WHEN 7 THEN 75 ELSE 2 END)
            AS number"""
        )
        old = await locker.connection.fetchval(
            "SELECT count(*) FROM chats WHERE updated_at < now() - interval '30 days'"
        )
        steps = [count async for count in old_chats(harness.database, DAYS)]
        assert sum(steps) == old == 508
        assert max(steps) == 1
        assert await locker.connection.fetchval("SELECT count(*) FROM chats") == 25


async def test_uploads_are_deleted_by_their_age_also_those_in_use(harness: Harness) -> None:
    old, renewed, fresh = id_of(DAYS + 1), id_of(DAYS + 1), id_of(DAYS - 1)
    async with harness.locker() as locker:
        for id, days in ((old, DAYS + 1), (renewed, 0), (fresh, DAYS - 1)):
            await locker.connection.execute(
                """INSERT INTO uploads (id, owner, digest, media_type, content, created_at)
                VALUES ($1, $2, sha256($1::uuid::text::bytea), 'text/plain', 'x', now() - $3::interval)""",
                id,
                OWNER,
                timedelta(days=days),
            )
    assert await swept(aged_rows(harness.database, AGED_UPLOADS, DAYS)) == 1
    assert (await Uploads(harness.database).describe(OWNER, [old, renewed, fresh])).keys() == {renewed, fresh}


async def test_the_settings_select_the_sweeps(harness: Harness) -> None:
    def names(**given: Any) -> set[str]:
        settings = Settings(_env_file=None, **given)
        return {
            sweep.name
            for sweep in [*sweeps_of(settings, harness.database), *retention.sweeps_of(settings, harness.database)]
        }

    always = {"unused uploads", "deleted chats", "old idempotency keys", "audit"}
    assert names() >= always
    assert names(retain_chats_days=1, retain_uploads_days=2) - names() == {"old chats", "old uploads"}
    await Documents(harness.database).put(OWNER, "kept.md", "Nothing sweeps documents.")
    for sweep in sweeps_of(Settings(_env_file=None), harness.database):
        await sweep.look(Sweeps(harness.database))
    assert await Documents(harness.database).read(OWNER, "kept.md") is not None

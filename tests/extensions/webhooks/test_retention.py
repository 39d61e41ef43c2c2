"""Webhooks that were delivered or abandoned are deleted at a certain age."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.support.harness import Harness
from tests.support.sweeping import id_of, swept
from turnstream.extensions.webhooks.queue import FINISHED
from turnstream.storage.retention import aged_rows

DAYS = 30


@pytest.mark.parametrize(("table", "columns"), [("webhooks", ""), ("waiting_webhooks", ", asked, calls")])
async def test_webhooks_are_deleted_by_the_age_of_their_end(harness: Harness, table: str, columns: str) -> None:
    ids = [id_of(DAYS + number) for number in range(1, 5)]
    async with harness.locker() as locker:
        for id in ids:
            await locker.connection.execute("UPDATE turns SET id = $2 WHERE id = $1", (await harness.ask()).turn, id)
        await locker.connection.execute(
            f"INSERT INTO {table} (turn_id, due_at, delivered_at, given_up_at{columns})"
            f" SELECT turn, due, now() - delivered, now() - given_up{', 1, to_json(1)' if columns else ''}"
            " FROM unnest($1::uuid[], $2::timestamptz[], $3::interval[], $4::interval[])"
            " AS ends (turn, due, delivered, given_up)",
            ids,
            [None, None, None, datetime.now(UTC)],
            [timedelta(days=DAYS + 1), None, timedelta(days=1), None],
            [None, timedelta(days=DAYS + 1), None, None],
        )
        assert await swept(aged_rows(harness.database, FINISHED[table], DAYS)) == 2
        left = await locker.connection.fetch(f"SELECT turn_id FROM {table}")
    assert {row["turn_id"] for row in left} == {*ids[2:]}

"""Keys of owners: each key is created once, can be erased permanently, and can be wrapped again while servers run."""

import asyncio
from itertools import count

import pytest

from tests.support.harness import Harness
from turnstream.domain.errors import CannotOpen, Conflict
from turnstream.extensions.keys.rotation import KeyCounts, key_counts
from turnstream.kit.ids import new_id
from turnstream.libraries.erasure.owners import Owners
from turnstream.libraries.secrets.owner_keys import OwnerKeys
from turnstream.libraries.secrets.sealing import MasterKeys, is_sealed, new_master_key
from turnstream.storage.database import Statement
from turnstream.storage.runs.queue import Queue


async def test_replicas_that_need_a_key_at_once_share_one(harness: Harness) -> None:
    masters = MasterKeys.read(new_master_key())
    replicas = [OwnerKeys(harness.database, masters) for _ in range(8)]
    keys = await asyncio.gather(*(each.find_or_create("ada") for each in replicas))
    assert len({key.seal("secret", "place") for key in keys}) == 1
    assert await key_counts(replicas[0]) == KeyCounts(every=1, others=0)


async def test_after_an_erasure_no_key_decrypts_the_old_contents(harness: Harness) -> None:
    """The owner may get a new key later, which cannot decrypt the old contents either."""
    keys = OwnerKeys(harness.database, MasterKeys.read(new_master_key()))
    sealed = (await keys.find_or_create("ada")).seal("secret", "place")
    other = await keys.find_or_create("bob")
    async for _ in Owners(harness.database).erase("ada"):
        pass
    assert await Owners(harness.database).is_erased("ada")
    assert await keys.find("ada") is None
    again = await keys.find_or_create("ada")
    for key in (other, again):
        with pytest.raises(CannotOpen):
            key.open(sealed, "place")


async def test_nothing_is_encrypted_while_a_live_replica_cannot_decrypt_it(harness: Harness) -> None:
    old, new = new_master_key(), new_master_key()
    masters = MasterKeys.read(f"{new} {old}")
    keys, strict = OwnerKeys(harness.database, masters), OwnerKeys(harness.database, masters, required=True)
    plain, sessions = {"authorization": "Bearer secret"}, count(1)

    def queue(address: str, *ids: bytes) -> Queue:
        return Queue(harness.database, new_id(), address, session=next(sessions), master_keys=ids)

    await queue("new", *masters.ids).renew_lease(60)
    other = queue("other")
    await other.renew_lease(60)
    assert await keys.replica_without_key() == "other"
    assert await keys.sealed_headers("ada", "https://x.test", plain) == plain
    with pytest.raises(Conflict, match="while the replica other lacks the master key"):
        await strict.sealed_headers("ada", "https://x.test", plain)
    await other.leave()
    before = queue("before")
    # the lease has expired, but the replica may still run without its connection to Postgres
    await before.renew_lease(-250)
    await harness.database.rows(
        Statement("UPDATE replicas SET master_keys = NULL WHERE address = 'before' RETURNING id")
    )
    assert await keys.sealed_headers("ada", "https://x.test", plain) == plain
    await before.leave()
    assert is_sealed((await strict.sealed_headers("ada", "https://x.test", plain))["authorization"])


async def test_while_a_new_master_key_is_rolled_out_secrets_are_encrypted(harness: Harness) -> None:
    """The earlier master key wraps the keys of owners until every replica has the new master key."""
    old, new = new_master_key(), new_master_key()
    before, after = MasterKeys.read(old), MasterKeys.read(f"{new} {old}")
    await Queue(harness.database, new_id(), "before", session=1, master_keys=before.ids).renew_lease(60)
    await Queue(harness.database, new_id(), "after", session=2, master_keys=after.ids).renew_lease(60)
    keys, plain = OwnerKeys(harness.database, after, required=True), {"authorization": "Bearer secret"}
    for owner in ("ada", "bob"):
        if owner == "ada":  # the key of ada exists before the rollout
            await OwnerKeys(harness.database, before).find_or_create(owner)
        sealed = await keys.sealed_headers(owner, "https://x.test", plain)
        assert is_sealed(sealed["authorization"])
        opened = await OwnerKeys(harness.database, before).opened_headers(owner, "https://x.test", sealed)
        assert opened == plain
    # The replica that has only the earlier master key cannot unwrap a key that the new master key wraps.
    await OwnerKeys(harness.database, MasterKeys.read(new)).find_or_create("eve")
    with pytest.raises(Conflict, match="while the replica before lacks the master key"):
        await keys.sealed_headers("eve", "https://x.test", plain)

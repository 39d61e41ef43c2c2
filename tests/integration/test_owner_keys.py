"""Keys of owners: made once, erased for good, wrapped anew while servers work."""

import asyncio
from itertools import count

import pytest

from tests.support.harness import Harness
from turnstream.domain.errors import Conflict
from turnstream.kit.ids import new_id
from turnstream.kit.sealing import CannotOpen, MasterKeys, is_sealed, new_master_key
from turnstream.storage.database import Statement
from turnstream.storage.owners.owner_keys import KeyCounts, OwnerKeys
from turnstream.storage.owners.owners import Owners
from turnstream.storage.runs.queue import Queue


async def test_replicas_that_need_a_key_at_once_share_one(harness: Harness) -> None:
    masters = MasterKeys.read(new_master_key())
    replicas = [OwnerKeys(harness.database, masters) for _ in range(8)]
    keys = await asyncio.gather(*(each.find_or_create("ada") for each in replicas))
    assert len({key.seal("secret", "place") for key in keys}) == 1
    assert await replicas[0].counts() == KeyCounts(every=1, others=0)


async def test_after_an_erasure_no_key_opens_what_was_sealed(harness: Harness) -> None:
    """Not even that which the owner gets afterwards."""
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
    lacking = {"old": MasterKeys.read(old).ids, "none": ()}
    for address, ids in lacking.items():
        other = queue(address, *ids)
        await other.renew_lease(60)
        assert await keys.replica_without_key() == address
        assert await keys.sealed_headers("ada", "https://x.test", plain) == plain
        with pytest.raises(Conflict, match=f"while the replica {address} lacks the master key"):
            await strict.sealed_headers("ada", "https://x.test", plain)
        await other.leave()
    before = queue("before")
    await before.renew_lease(-250)  # it may still live, cut off from Postgres
    await harness.database.rows(
        Statement("UPDATE replicas SET master_keys = NULL WHERE address = 'before' RETURNING id")
    )
    assert await keys.sealed_headers("ada", "https://x.test", plain) == plain
    await before.leave()
    assert is_sealed((await strict.sealed_headers("ada", "https://x.test", plain))["authorization"])


async def test_a_rotation_that_was_cut_off_goes_on_while_others_read(harness: Harness) -> None:
    old, new = new_master_key(), new_master_key()
    before = OwnerKeys(harness.database, MasterKeys.read(old))
    owners = [f"owner-{number:03}" for number in range(150)]
    sealed = {owner: (await before.find_or_create(owner)).seal(owner, "place") for owner in owners}
    both = OwnerKeys(harness.database, MasterKeys.read(f"{new} {old}"))
    async for step in both.rotate():
        assert step.rewrapped == 100
        break
    assert await both.counts() == KeyCounts(every=150, others=50)
    for owner in owners:  # some are wrapped by the one, and some by the other
        key = await both.find(owner)
        assert key is not None
        assert key.open(sealed[owner], "place") == owner
    assert [step.rewrapped async for step in both.rotate()] == [50]
    assert [step async for step in both.rotate()] == []
    after = OwnerKeys(harness.database, MasterKeys.read(new))
    for owner in owners:
        key = await after.find(owner)
        assert key is not None
        assert key.open(sealed[owner], "place") == owner
    with pytest.raises(CannotOpen):
        await before.find(owners[0])


async def test_a_rotation_names_owners_whose_key_it_cannot_unwrap(harness: Harness) -> None:
    await OwnerKeys(harness.database, MasterKeys.read(new_master_key())).find_or_create("ada")
    old, new = new_master_key(), new_master_key()
    await OwnerKeys(harness.database, MasterKeys.read(old)).find_or_create("bob")
    both = OwnerKeys(harness.database, MasterKeys.read(f"{new} {old}"))
    steps = [step async for step in both.rotate()]
    assert [(step.rewrapped, step.failed) for step in steps] == [(1, ("ada",))]
    assert await both.counts() == KeyCounts(every=2, others=1)

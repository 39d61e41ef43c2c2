"""The master key is changed while servers run."""

import pytest

from tests.support.harness import Harness
from turnstream.domain.errors import CannotOpen
from turnstream.extensions.keys.rotation import KeyCounts, key_counts, rotate
from turnstream.libraries.secrets.owner_keys import OwnerKeys
from turnstream.libraries.secrets.sealing import MasterKeys, new_master_key
from turnstream.storage.database import Statement


async def test_an_interrupted_rotation_continues_while_others_read(harness: Harness) -> None:
    old, new = new_master_key(), new_master_key()
    before = OwnerKeys(harness.database, MasterKeys.read(old))
    owners = [f"owner-{number:03}" for number in range(150)]
    sealed = {owner: (await before.find_or_create(owner)).seal(owner, "place") for owner in owners}
    masters = MasterKeys.read(f"{new} {old}")
    both = OwnerKeys(harness.database, masters)
    async for step in rotate(harness.database, masters):
        assert step.rewrapped == 100
        break
    assert await key_counts(both) == KeyCounts(every=150, others=50)
    # at this point, the earlier master key wraps some keys, and the new master key wraps the others
    for owner in owners:
        key = await both.find(owner)
        assert key is not None
        assert key.open(sealed[owner], "place") == owner
    assert [step.rewrapped async for step in rotate(harness.database, masters)] == [50]
    assert [step async for step in rotate(harness.database, masters)] == []
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
    masters = MasterKeys.read(f"{new} {old}")
    steps = [step async for step in rotate(harness.database, masters)]
    assert [(step.rewrapped, step.failed) for step in steps] == [(1, ("ada",))]
    assert await key_counts(OwnerKeys(harness.database, masters)) == KeyCounts(every=2, others=1)


async def test_the_key_of_a_moved_owner_is_wrapped_again(harness: Harness) -> None:
    """The key must still decrypt the rows that remain in this cell, even after a move back has restored the owner's
    name.
    """
    old, new = new_master_key(), new_master_key()
    before, masters = OwnerKeys(harness.database, MasterKeys.read(old)), MasterKeys.read(f"{new} {old}")
    sealed = (await before.find_or_create("ada")).seal("secret", "place")
    rename = Statement("UPDATE owner_keys SET owner = :after WHERE owner = :before RETURNING owner")
    await harness.database.rows(rename, before="ada", after="ada (moved to 08)")
    assert [(step.rewrapped, step.failed) async for step in rotate(harness.database, masters)] == [(1, ())]
    after = OwnerKeys(harness.database, MasterKeys.read(new))
    for name in ("ada (moved to 08)", "ada"):
        key = await after.find(name)
        assert key is not None
        assert key.open(sealed, "place") == "secret"
        await harness.database.rows(rename, before=name, after="ada")

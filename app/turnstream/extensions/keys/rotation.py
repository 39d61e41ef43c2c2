"""Changes the master key: wraps each owner's key with the new master key. No secret is encrypted again."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from turnstream.domain.errors import CannotOpen
from turnstream.domain.identity import owner_before_move
from turnstream.libraries.sealed_rows import REWRAP
from turnstream.libraries.secrets.owner_keys import OwnerKeys
from turnstream.libraries.secrets.sealing import MasterKeys
from turnstream.storage.database import LONG, Database, Statement

# The keys that another master key wraps, in the order of the primary key. If a command was interrupted, the next call
# therefore continues with the first key that was not wrapped again.
GET_KEYS_OF_OTHERS = Statement(
    """
    SELECT owner, wrapped FROM owner_keys WHERE master <> :master AND owner > :behind ORDER BY owner LIMIT :most
    """,
    timeout=LONG,
)
COUNT_KEYS = Statement(
    "SELECT count(*) AS every, count(*) FILTER (WHERE master <> :master) AS others FROM owner_keys", timeout=LONG
)

_STEP = 100


@dataclass(frozen=True, slots=True)
class RotationStep:
    """A step of the rotation: the number of keys that the step has wrapped by the first master key, and the owners
    whose key cannot be unwrapped by any master key.
    """

    rewrapped: int
    failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """The number of all keys of owners, and the number of keys that are not wrapped by the first master key."""

    every: int
    others: int


async def key_counts(keys: OwnerKeys) -> KeyCounts:
    row = await keys.database.row(COUNT_KEYS, master=keys.masters.first)
    return KeyCounts(0, 0) if row is None else KeyCounts(row["every"], row["others"])


async def rotate(database: Database, masters: MasterKeys) -> AsyncGenerator[RotationStep, None]:
    """Wraps each key by the first master key. Servers may work meanwhile if they have both master keys. If a call is
    interrupted, the next call completes the rotation.
    """
    behind, first = "", masters.first
    while rows := await database.rows(GET_KEYS_OF_OTHERS, master=first, behind=behind, most=_STEP):
        done, failed = 0, list[str]()
        for row in rows:
            # A move keeps the wrapped key, but stores it under another name of the owner.
            owner, before = owner_before_move(row["owner"]), row["wrapped"]
            try:
                wrapped = await masters.wrap(owner, await masters.unwrap(owner, before))
            except CannotOpen:
                failed.append(row["owner"])
                continue
            # Meanwhile the key may have been erased, or wrapped by another rotation.
            done += len(await database.rows(REWRAP, owner=row["owner"], master=first, wrapped=wrapped, before=before))
        yield RotationStep(done, tuple(failed))
        behind = rows[-1]["owner"]

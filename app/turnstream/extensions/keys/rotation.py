"""The change of the master key: each owner's key is wrapped by the new one. No secret is encrypted again."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from turnstream.domain.errors import CannotOpen
from turnstream.domain.identity import owner_before_move
from turnstream.libraries.sealed_rows import REWRAP
from turnstream.libraries.secrets.owner_keys import OwnerKeys
from turnstream.libraries.secrets.sealing import MasterKeys
from turnstream.storage.database import LONG, Database, Statement

# In the order of the primary key: an interrupted command continues with the first key that was not wrapped again.
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
    """The number of keys that a step has wrapped by the first master key, and the owners with a key that no master key
    unwraps.
    """

    rewrapped: int
    failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """The number of owners' keys, and the number of keys wrapped by a master key other than the first."""

    every: int
    others: int


async def key_counts(keys: OwnerKeys) -> KeyCounts:
    row = await keys.database.row(COUNT_KEYS, master=keys.masters.first)
    return KeyCounts(0, 0) if row is None else KeyCounts(row["every"], row["others"])


async def rotate(database: Database, masters: MasterKeys) -> AsyncGenerator[RotationStep, None]:
    """Wraps each key by the first master key. Servers may work meanwhile if they have both master keys. The next call
    completes an interrupted one.
    """
    behind, first = "", masters.first
    while rows := await database.rows(GET_KEYS_OF_OTHERS, master=first, behind=behind, most=_STEP):
        done, failed = 0, list[str]()
        for row in rows:
            # A move keeps the wrapped key, under another owner name.
            owner, before = owner_before_move(row["owner"]), row["wrapped"]
            try:
                wrapped = await masters.wrap(owner, await masters.unwrap(owner, before))
            except CannotOpen:
                failed.append(row["owner"])
                continue
            # The key may have been erased, or wrapped by another rotation, meanwhile.
            done += len(await database.rows(REWRAP, owner=row["owner"], master=first, wrapped=wrapped, before=before))
        yield RotationStep(done, tuple(failed))
        behind = rows[-1]["owner"]

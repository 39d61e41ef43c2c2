"""The keys of owners, by which their secrets in rows are encrypted, and the change of the master key.

No key is kept in memory: each use reads the row, so that a key that an erasure has deleted is used by no replica.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

from turnstream.domain.secret_headers import needs_sealing
from turnstream.kit.sealing import CannotOpen, MasterKeys, OwnerKey, is_sealed, new_owner_key
from turnstream.storage.database import LONG, Database, Statement

GET_OWNER_KEY = Statement("SELECT wrapped FROM owner_keys WHERE owner = :owner")
# Of two replicas that make one at once, both use that which is stored first.
CREATE_OWNER_KEY = Statement(
    """
    WITH made AS (
        INSERT INTO owner_keys (owner, master, wrapped) VALUES (:owner, :master, :wrapped)
        ON CONFLICT (owner) DO NOTHING
    )
    SELECT 1 AS done
    """
)
# By the primary key: keys that were wrapped anew leave no gap in the order, and a command that was cut off begins with
# the first one that is left.
GET_KEYS_OF_OTHERS = Statement(
    """
    SELECT owner, wrapped FROM owner_keys WHERE master <> :master AND owner > :behind ORDER BY owner LIMIT :most
    """,
    timeout=LONG,
)
REWRAP = Statement(
    """
    UPDATE owner_keys SET master = :master, wrapped = :wrapped WHERE owner = :owner AND wrapped = :before
    RETURNING owner
    """
)
COUNT_KEYS = Statement(
    "SELECT count(*) AS every, count(*) FILTER (WHERE master <> :master) AS others FROM owner_keys", timeout=LONG
)

_STEP = 100


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """How many keys of owners there are, and how many of them another master key than the first one wraps."""

    every: int
    others: int


@dataclass(frozen=True, slots=True)
class RotationStep:
    """How many keys a step has wrapped by the first master key; and owners whose key no master key here unwraps."""

    rewrapped: int
    failed: tuple[str, ...] = ()


class OwnerKeys:
    """`database` is not held to an owner: the role of the API does not reach the keys."""

    def __init__(self, database: Database, masters: MasterKeys) -> None:
        self._database = database
        self._masters = masters

    async def find(self, owner: str) -> OwnerKey | None:
        """None for an owner without a key, or whose key was erased. Raises CannotOpen."""
        row = await self._database.row(GET_OWNER_KEY, owner=owner)
        return None if row is None else OwnerKey(self._masters.unwrap(owner, row["wrapped"]))

    async def find_or_create(self, owner: str) -> OwnerKey:
        """Raises CannotOpen."""
        while (key := await self.find(owner)) is None:
            wrapped = self._masters.wrap(owner, new_owner_key())
            await self._database.rows(CREATE_OWNER_KEY, owner=owner, master=self._masters.first, wrapped=wrapped)
        return key

    async def sealed_headers(self, owner: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        """The headers of a tool at `url` as they are stored: each opens for this owner, URL and name alone. Raises
        CannotOpen for a value that only looks sealed.
        """
        if not any(needs_sealing(value) for value in headers.values()):
            return headers
        key = await self.find_or_create(owner)
        sealed = dict(headers)
        for name, value in headers.items():
            if is_sealed(value):
                key.open(value, url, name)
            elif needs_sealing(value):
                sealed[name] = key.seal(value, url, name)
        return sealed

    async def opened_headers(self, owner: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Raises CannotOpen. A value from before the encryption stays as it is."""
        key = await self.find(owner)
        if key is None:
            raise CannotOpen(f"There is no key of {owner}: it was erased.")
        return {name: key.open(value, url, name) if is_sealed(value) else value for name, value in headers.items()}

    async def counts(self) -> KeyCounts:
        row = await self._database.row(COUNT_KEYS, master=self._masters.first)
        assert row is not None
        return KeyCounts(row["every"], row["others"])

    async def rotate(self) -> AsyncGenerator[RotationStep, None]:
        """Wraps each key by the first master key. Servers may work meanwhile if they have both master keys. What was
        cut off is done by the next call.
        """
        behind, first = "", self._masters.first
        while rows := await self._database.rows(GET_KEYS_OF_OTHERS, master=first, behind=behind, most=_STEP):
            done, failed = 0, list[str]()
            for row in rows:
                owner, before = row["owner"], row["wrapped"]
                try:
                    wrapped = self._masters.wrap(owner, self._masters.unwrap(owner, before))
                except CannotOpen:
                    failed.append(owner)
                    continue
                done += len(
                    await self._database.rows(REWRAP, owner=owner, master=first, wrapped=wrapped, before=before)
                )
            yield RotationStep(done, tuple(failed))
            behind = rows[-1]["owner"]

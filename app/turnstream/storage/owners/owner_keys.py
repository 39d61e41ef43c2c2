"""The keys of owners, by which their secrets in rows are encrypted, and the change of the master key.

No key is kept in memory: each use reads the row, so that a key that an erasure has deleted is used by no replica.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

from turnstream.domain.errors import Conflict
from turnstream.domain.secret_headers import needs_sealing
from turnstream.kit.sealing import CannotOpen, MasterKeys, OwnerKey, is_sealed, new_owner_key
from turnstream.storage.database import LONG, Database, Statement, retry_while_unavailable

GET_OWNER_KEY = Statement("SELECT wrapped FROM owner_keys WHERE owner = :owner")
# Replicas of the version before, and those without the key: they would send the encrypted text. As long as one may be
# alive, nothing is encrypted.
_CANNOT_OPEN = """
    FROM replicas WHERE NOT coalesce(CAST(:master AS bytea) = ANY(master_keys), false)
    AND lease_until > now() - interval '5 minutes'
"""
GET_REPLICA_WITHOUT_KEY = Statement(f"SELECT address {_CANNOT_OPEN} LIMIT 1")
COUNT_LOST_KEYS = Statement(
    "SELECT count(*) AS number FROM owner_keys WHERE master <> ALL(CAST(:masters AS bytea[]))", timeout=LONG
)
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


async def count_lost_keys(database: Database, masters: MasterKeys | None) -> int:
    """How many keys of owners none of the master keys unwraps."""
    row = await database.row(COUNT_LOST_KEYS, masters=masters.ids if masters else ())
    return 0 if row is None else row["number"]


class OwnerKeys:
    """`database` is not held to an owner: the role of the API does not reach the keys. With `required`, a secret that
    cannot be encrypted now is refused.
    """

    def __init__(self, database: Database, masters: MasterKeys, *, required: bool = False) -> None:
        self._database = database
        self._masters = masters
        self._required = required

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
        """The headers of a tool at `url` as they are stored: each opens for this owner, URL and name alone. They stay
        plain while a live replica cannot open them. Raises CannotOpen for a value that only looks sealed, and Conflict.
        """
        if not any(needs_sealing(value) for value in headers.values()):
            return headers
        key = await self.find_or_create(owner)
        for name, value in headers.items():
            if is_sealed(value):
                key.open(value, url, name)
        if (replica := await self.replica_without_key()) is not None:
            if self._required:
                raise Conflict(
                    f"A secret cannot be encrypted while the replica {replica} lacks the master key: try again when it"
                    " has the key, or has been away for five minutes."
                )
            return headers
        return {
            name: key.seal(value, url, name) if needs_sealing(value) and not is_sealed(value) else value
            for name, value in headers.items()
        }

    async def replica_without_key(self) -> str | None:
        """The address of a live replica that cannot open what is sealed here."""
        row = await self._database.row(GET_REPLICA_WITHOUT_KEY, master=self._masters.first)
        return None if row is None else row["address"]

    async def opened_headers(self, owner: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Raises CannotOpen. A value from before the encryption stays as it is."""
        key = await retry_while_unavailable(lambda: self.find(owner))
        if key is None:
            raise CannotOpen(f"There is no key of {owner}: it was erased.")
        return {name: key.open(value, url, name) if is_sealed(value) else value for name, value in headers.items()}

    async def counts(self) -> KeyCounts:
        row = await self._database.row(COUNT_KEYS, master=self._masters.first)
        return KeyCounts(0, 0) if row is None else KeyCounts(row["every"], row["others"])

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

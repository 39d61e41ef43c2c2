"""The keys of owners, by which their secrets in rows are encrypted.

No key is kept in memory: each use reads the row, so that a key that an erasure has deleted is used by no replica.
"""

from collections.abc import Mapping, Sequence

from turnstream.domain.errors import CannotOpen, Conflict
from turnstream.domain.identity import owner_before_move
from turnstream.libraries.secrets.credentials import needs_sealing
from turnstream.libraries.secrets.sealing import MasterKeys, OwnerKey, is_sealed, new_owner_key
from turnstream.storage.database import LONG, Database, Statement, retry_while_unavailable

GET_OWNER_KEY = Statement("SELECT master, wrapped, earlier FROM owner_keys WHERE owner = :owner")
# Replicas of the version before, and those without the key: they would send the encrypted text. As long as one may be
# alive, nothing is encrypted.
_CANNOT_OPEN = """
    FROM replicas WHERE (NOT coalesce(CAST(:master AS bytea) = ANY(master_keys), false)
        OR CAST(:extension AS text) IS NOT NULL AND CAST(:extension AS text) <> ALL(extensions))
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


async def count_lost_keys(database: Database, masters: Sequence[bytes]) -> int:
    """How many keys of owners none of the master keys with these ids unwraps."""
    row = await database.row(COUNT_LOST_KEYS, masters=masters)
    return 0 if row is None else row["number"]


class OwnerKeys:
    """`database` is not held to an owner: the role of the API does not reach the keys. With `required`, a secret that
    cannot be encrypted now is refused.
    """

    def __init__(self, database: Database, masters: MasterKeys, *, required: bool = False) -> None:
        self.database = database
        self.masters = masters
        self.required = required

    async def find(self, owner: str) -> OwnerKey | None:
        """None for an owner without a key, or whose key was erased. Raises CannotOpen."""
        row = await self.database.row(GET_OWNER_KEY, owner=owner)
        if row is None:
            return None
        key = await self.masters.unwrap(owner_before_move(owner), row["wrapped"])
        return OwnerKey(key, row["master"], row["earlier"])

    async def find_or_create(self, owner: str) -> OwnerKey:
        """Raises CannotOpen."""
        while (key := await self.find(owner)) is None:
            master = await self._master_of_all()
            wrapped = await self.masters.wrap(owner_before_move(owner), new_owner_key(), master)
            await self.database.rows(CREATE_OWNER_KEY, owner=owner, master=master, wrapped=wrapped)
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
        if (replica := await self.replica_without_key(key.master)) is not None:
            if self.required:
                raise Conflict(
                    f"A secret cannot be encrypted while the replica {replica} lacks the master key: try again when it"
                    " has the key, or has been away for five minutes."
                )
            return headers
        return {
            name: key.seal(value, url, name) if needs_sealing(value) and not is_sealed(value) else value
            for name, value in headers.items()
        }

    async def replica_without_key(self, master: bytes | None = None, extension: str | None = None) -> str | None:
        """The address of a live replica that lacks the master key, the first one without an id, or the extension."""
        values = {"master": master or self.masters.first, "extension": extension}
        row = await self.database.row(GET_REPLICA_WITHOUT_KEY, **values)
        return None if row is None else row["address"]

    async def _master_of_all(self) -> bytes:
        """The first master key that all live replicas have: while a new one is given to one replica after the other,
        the keys of new owners are wrapped by the earlier one.
        """
        for master in self.masters.ids:
            if await self.replica_without_key(master) is None:
                return master
        return self.masters.first

    async def opened_headers(self, owner: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Raises CannotOpen. A value from before the encryption stays as it is."""
        key = await retry_while_unavailable(lambda: self.find(owner))
        if key is None:
            raise CannotOpen(f"There is no key of {owner}: it was erased.")
        return {name: key.open(value, url, name) if is_sealed(value) else value for name, value in headers.items()}

"""The keys of owners, which encrypt the secrets of owners in rows.

No key is cached in memory: each use reads the row, so that no replica uses a key after its erasure.
"""

from collections.abc import Mapping, Sequence

from turnstream.domain.errors import CannotOpen, Conflict
from turnstream.domain.identity import owner_before_move
from turnstream.libraries.secrets.credentials import needs_sealing
from turnstream.libraries.secrets.sealing import MasterKeys, OwnerKey, is_sealed, new_owner_key
from turnstream.storage.database import LONG, Database, Statement, retry_while_unavailable

GET_OWNER_KEY = Statement("SELECT master, wrapped, earlier FROM owner_keys WHERE owner = :owner")
# Replicas of the previous version, and replicas without the key, would send the encrypted text to the tool. No secret
# is encrypted while such a replica may be alive.
_CANNOT_OPEN = """
    FROM replicas WHERE (NOT coalesce(CAST(:master AS bytea) = ANY(master_keys), false)
        OR CAST(:extension AS text) IS NOT NULL AND CAST(:extension AS text) <> ALL(extensions))
    AND lease_until > now() - interval '5 minutes'
"""
GET_REPLICA_WITHOUT_KEY = Statement(f"SELECT address {_CANNOT_OPEN} LIMIT 1")
COUNT_LOST_KEYS = Statement(
    "SELECT count(*) AS number FROM owner_keys WHERE master <> ALL(CAST(:masters AS bytea[]))", timeout=LONG
)
# If two replicas create a key at the same time, both use the first stored key.
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
    """Returns the number of owners' keys that none of the master keys with these ids can unwrap."""
    row = await database.row(COUNT_LOST_KEYS, masters=masters)
    return 0 if row is None else row["number"]


class OwnerKeys:
    """Finds and creates the keys of owners. `database` is not restricted to an owner, because the role of the API
    cannot read the keys. If `required` is true, a secret that cannot be encrypted now is refused.
    """

    def __init__(self, database: Database, masters: MasterKeys, *, required: bool = False) -> None:
        self.database = database
        self.masters = masters
        self.required = required

    async def find(self, owner: str) -> OwnerKey | None:
        """Returns the owner's key, or None if the owner has no key or the key was erased. Raises CannotOpen."""
        row = await self.database.row(GET_OWNER_KEY, owner=owner)
        if row is None:
            return None
        key = await self.masters.unwrap(owner_before_move(owner), row["wrapped"])
        return OwnerKey(key, row["master"], row["earlier"])

    async def find_or_create(self, owner: str) -> OwnerKey:
        """Returns the owner's key, and creates the key if there is none. Raises CannotOpen."""
        while (key := await self.find(owner)) is None:
            master = await self._master_of_all()
            wrapped = await self.masters.wrap(owner_before_move(owner), new_owner_key(), master)
            await self.database.rows(CREATE_OWNER_KEY, owner=owner, master=master, wrapped=wrapped)
        return key

    async def sealed_headers(self, owner: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the headers of a tool at `url` in their stored form. An encrypted value can be decrypted only for
        this owner, this URL and this header. Headers are stored in plain text while a live replica cannot decrypt them.
        Raises Conflict if encryption is required and a live replica lacks the key. Raises CannotOpen for a value that
        has the form of a ciphertext but cannot be decrypted.
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
        """Returns the address of a live replica that lacks the master key or the extension. By default, `master` is the
        first master key.
        """
        values = {"master": master or self.masters.first, "extension": extension}
        row = await self.database.row(GET_REPLICA_WITHOUT_KEY, **values)
        return None if row is None else row["address"]

    async def _master_of_all(self) -> bytes:
        """Returns the first master key that all live replicas have. During the rollout of a new master key, the earlier
        master key therefore wraps the keys of new owners.
        """
        for master in self.masters.ids:
            if await self.replica_without_key(master) is None:
                return master
        return self.masters.first

    async def opened_headers(self, owner: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Returns the headers with decrypted values. Values in plain text are returned unchanged. Raises CannotOpen."""
        key = await retry_while_unavailable(lambda: self.find(owner))
        if key is None:
            raise CannotOpen(f"There is no key of {owner}: it was erased.")
        return {name: key.open(value, url, name) if is_sealed(value) else value for name, value in headers.items()}

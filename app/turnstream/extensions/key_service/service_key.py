"""A key in a service that has the API of `transit`, the secrets engine of Vault and OpenBao. The service key wraps the
keys of owners. The service binds each wrapped key to its owner, whose name is the associated data.
"""

import asyncio
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Final
from urllib.parse import quote

import httpx2
import msgspec
import structlog

from turnstream.domain.errors import CannotOpen, StorageUnavailable
from turnstream.libraries.secrets.sealing import id_of

log = structlog.get_logger(__name__)

# Seconds for which a key in memory is used without a request to the service (`FRESH`), and for which the key is used
# while the service is unreachable (`STALE`).
FRESH: Final = 300.0
STALE: Final = 3600.0
_PAUSE: Final = 5.0  # seconds without requests after a request that got no response
_MOST: Final = 10_000  # keys in memory
_MOST_BYTES: Final = 65_536
_REFUSED: Final = {401, 403}
_WRONG: Final = {400, 404}


class KeyRefused(StorageUnavailable):
    """The service does not permit the use of the key now: its token may have expired, or an operator has locked it."""


class _Data(msgspec.Struct):
    ciphertext: str = ""
    plaintext: str = ""


class _Answer(msgspec.Struct):
    data: _Data


class _Known:
    """An unwrapped key of an owner in memory. `asking` allows one request at a time."""

    __slots__ = ("asked", "asking", "key")

    def __init__(self) -> None:
        self.key: bytes | None = None
        self.asked = 0.0
        self.asking = asyncio.Lock()


class ServiceKey:
    """The key `name` of the service at `url`. While the service is unreachable, keys in memory are used for an hour. If
    the service refuses a key, the key is dropped from memory. All other uses wait for the service, as they wait for
    Postgres.
    """

    def __init__(
        self, name: str, url: str, token: str | None, timeout: float, clock: Callable[[], float] = monotonic
    ) -> None:
        self.id = id_of(b"turnstream key service\0" + name.encode())
        self._name = name
        self._url = url.rstrip("/")
        self._headers = {} if token is None else {"x-vault-token": token}
        self._timeout = timeout
        self._clock = clock
        self._known: OrderedDict[tuple[str, bytes], _Known] = OrderedDict()
        self._away_until = float("-inf")

    async def wrap(self, owner: str, key: bytes) -> bytes:
        answer = await self._ask("encrypt", owner, plaintext=b64encode(key).decode())
        return answer.ciphertext.encode()

    async def unwrap(self, owner: str, wrapped: bytes) -> bytes:
        known = self._known.setdefault((owner, wrapped), _Known())
        self._known.move_to_end((owner, wrapped))
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        async with known.asking:
            if known.key is not None and self._clock() < known.asked + FRESH:
                return known.key
            try:
                answer = await self._ask("decrypt", owner, ciphertext=wrapped.decode())
                known.key, known.asked = b64decode(answer.plaintext, validate=True), self._clock()
            except (NotBase64, UnicodeDecodeError):
                raise CannotOpen(f"The key service gives no key of {owner}.") from None
            except (CannotOpen, KeyRefused):
                known.key = None
                raise
            except StorageUnavailable:
                if known.key is None or self._clock() >= known.asked + STALE:
                    raise
        return known.key

    async def _ask(self, call: str, owner: str, **values: str) -> _Data:
        """Sends a request to the service. Raises CannotOpen and StorageUnavailable."""
        if self._clock() < self._away_until:
            raise StorageUnavailable("The key service does not answer.")
        body = msgspec.json.encode({**values, "associated_data": b64encode(owner.encode()).decode()})
        url = f"{self._url}/{call}/{quote(self._name, safe='')}"
        try:
            async with asyncio.timeout(self._timeout):
                status, content = await self._post(url, body)
            if status == httpx2.codes.OK:
                return msgspec.json.decode(content, type=_Answer).data
        except (httpx2.HTTPError, TimeoutError, msgspec.MsgspecError) as error:
            status, reason = 0, repr(error)
        else:
            reason = content.decode(errors="replace")[:300]
        if status in _REFUSED or status in _WRONG:
            log.error("key_service.refused", call=call, key=self._name, owner=owner, status=status, reason=reason)
            text = f"The key service refuses the key of {owner} (status {status})."
            raise KeyRefused(text) if status in _REFUSED else CannotOpen(text)
        self._away_until = self._clock() + _PAUSE
        log.warning("key_service.away", call=call, key=self._name, status=status, reason=reason)
        raise StorageUnavailable("The key service does not answer.")

    async def _post(self, url: str, body: bytes) -> tuple[int, bytes]:
        headers = {"content-type": "application/json", **self._headers}
        async with (
            httpx2.AsyncClient(timeout=self._timeout, follow_redirects=False) as http,
            http.stream("POST", url, content=body, headers=headers) as response,
        ):
            content = b""
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > _MOST_BYTES:
                    break
        return response.status_code, content

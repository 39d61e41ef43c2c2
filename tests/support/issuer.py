"""An issuer of JSON web tokens over real HTTP, with its OpenID configuration, its key set, and key rotation."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from itertools import count
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.support.http_server import answering

AUDIENCE = "turnstream"
_numbers = count()


@cache
def _rsa_key(_: int) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


_OF_TYPE: dict[str, Callable[[], Any]] = {
    # Generating a key costs as much as the rest of a test, so a process reuses eight keys.
    "RS256": lambda: _rsa_key(next(_numbers) % 8),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
}


class TestIssuer:
    """The issuer. `published` has the ids of the keys in its key set; `requests` has the paths that were requested."""

    __test__ = False

    def __init__(self) -> None:
        self.url = ""
        self.keys: dict[str, tuple[str, Any]] = {}
        self.published: list[str] = []
        self.requests: list[str] = []
        self.is_away = False

    def add_key(self, id: str, algorithm: str = "RS256", *, published: bool = True) -> None:
        self.keys[id] = algorithm, _OF_TYPE[algorithm]()
        if published:
            self.published.append(id)

    def public_key(self, id: str) -> dict[str, Any]:
        algorithm, key = self.keys[id]
        jwk = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
        return {**jwk, "kid": id, "alg": algorithm, "use": "sig"}

    def token(self, key: str, /, seconds: float = 300, **claims: Any) -> str:
        algorithm, private = self.keys[key]
        now = int(time.time())
        usual = {"iss": self.url, "aud": AUDIENCE, "sub": "ada", "iat": now, "exp": int(now + seconds)}
        sent = {name: value for name, value in {**usual, **claims}.items() if value is not None}
        return jwt.encode(sent, private, algorithm, headers={"kid": key})

    @property
    def fetches(self) -> int:
        return self.requests.count("/keys")

    async def answer(self, request: Request) -> JSONResponse:
        self.requests.append(request.url.path)
        if self.is_away:
            return JSONResponse({}, 503)
        if request.url.path == "/keys":
            return JSONResponse({"keys": [self.public_key(id) for id in self.published]})
        return JSONResponse({"issuer": self.url, "jwks_uri": f"{self.url}/keys"})


@asynccontextmanager
async def issuing() -> AsyncIterator[TestIssuer]:
    """Runs an issuer with one key, `first`."""
    issuer = TestIssuer()
    issuer.add_key("first")
    app = Starlette(routes=[Route("/{path:path}", issuer.answer)])
    async with answering(app) as url:
        issuer.url = url
        yield issuer

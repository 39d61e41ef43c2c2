"""Authenticates requests by JSON web tokens, which an issuer for logins has signed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pydantic import Field

from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import Extension
from turnstream.libraries.extras import need
from turnstream.libraries.logins import LoginSection

if TYPE_CHECKING:
    from turnstream.api.identity.authenticator import Authenticate
    from turnstream.extensions.jwt.tokens import Issuer
    from turnstream.llm.models.catalog import Models


class JwtSettings(LoginSection):
    owner_prefix = "jwt"

    jwt_issuer: str | None = Field(
        None, description="issuer whose JSON web tokens are accepted, as in their claim `iss`"
    )
    jwt_audience: str | None = Field(
        None, description="accepted audiences, separated by commas; required with an issuer"
    )
    jwt_audience_claim: str = Field("aud", description="claim that names the audience, such as `azp`")
    jwt_keys_url: str | None = Field(
        None, description="URL of the issuer's keys (JWKS); by default from its OpenID configuration"
    )
    jwt_algorithms: str = Field(
        "RS256, ES256, EdDSA", description="signatures that are accepted, of those with a public key"
    )
    jwt_owner_claim: str = Field("sub", description="claim with the owner, as a path with dots")
    jwt_owner_claim_is_fixed: bool = Field(
        False,
        description="true: an owner claim such as `email` is accepted, because users cannot change it",
    )
    jwt_type: str | None = Field(None, description="required `typ` of the header, such as `at+jwt`")
    jwt_roles_claim: str | None = Field(
        None, description="claim with roles, such as `realm_access.roles`: a list, or words in one text"
    )
    jwt_plan_claim: str | None = Field(None, description="claim with the plan of the owner")
    jwt_cell_claim: str | None = Field(None, description="claim with the cell of the owner")
    jwt_leeway: float = Field(30, ge=0, le=300, description="accepted difference of clocks")


@asynccontextmanager
async def _way(settings: Settings) -> AsyncIterator["Authenticate | None"]:
    given = settings.section(JwtSettings)
    if given.jwt_issuer is None:
        yield None
        return
    need("jwt", "jwt", "TURNSTREAM_JWT_ISSUER")
    from turnstream.extensions.jwt.tokens import open_jwt_tokens  # the import takes a tenth of a second

    async with open_jwt_tokens(_issuer(given, given.jwt_issuer)) as tokens:
        yield tokens.identity_of


async def _check(settings: Settings, _: "Models", ping: bool) -> str:
    given = settings.section(JwtSettings)
    if given.jwt_issuer is None:
        return "none"
    need("jwt", "jwt", "TURNSTREAM_JWT_ISSUER")
    from turnstream.libraries.outgoing.issuer_keys import keys_of

    issuer = _issuer(given, given.jwt_issuer)
    if not ping:
        return f"{issuer.name}; only --ping asks for its keys"
    try:
        keys = await keys_of(issuer.name, issuer.keys_url)
    except ValueError as error:
        raise ConfigError(f"The keys of {issuer.name} cannot be fetched: {error}.") from error
    if not keys:
        raise ConfigError(f"{issuer.name} has no key for signatures, so none of its tokens is accepted.")
    return f"{issuer.name} has {len(keys)} {'key' if len(keys) == 1 else 'keys'}"


def _issuer(given: JwtSettings, name: str) -> "Issuer":
    """Returns the issuer that the settings describe. Raises ConfigError."""
    from turnstream.extensions.jwt.tokens import KEY_TYPES, Issuer
    from turnstream.libraries.outgoing.issuer_keys import check_key_url, check_owner_claim

    algorithms = frozenset(_names(given.jwt_algorithms))
    if not algorithms or algorithms - KEY_TYPES.keys():
        raise ConfigError(f"TURNSTREAM_JWT_ALGORITHMS must name some of {', '.join(KEY_TYPES)}.")
    audiences = frozenset(_names(given.jwt_audience or ""))
    if not audiences:
        raise ConfigError(
            "TURNSTREAM_JWT_AUDIENCE must name the audience of tokens for this server: else the issuer's tokens for"
            " other servers would be accepted here."
        )
    claim = given.jwt_owner_claim
    check_owner_claim("TURNSTREAM_JWT_OWNER_CLAIM", claim, given.jwt_owner_claim_is_fixed)
    for setting, url in (("TURNSTREAM_JWT_ISSUER", name), ("TURNSTREAM_JWT_KEYS_URL", given.jwt_keys_url)):
        try:
            check_key_url(url or name)
        except ValueError as error:
            raise ConfigError(f"{setting}: {error}.") from None
    return Issuer(
        name=name,
        audiences=audiences,
        scopes=given.scopes(),
        algorithms=algorithms,
        keys_url=given.jwt_keys_url,
        audience_claim=given.jwt_audience_claim,
        owner_claim=given.jwt_owner_claim,
        roles_claim=given.jwt_roles_claim,
        plan_claim=given.jwt_plan_claim,
        cell_claim=given.jwt_cell_claim,
        leeway=given.jwt_leeway,
        type=given.jwt_type,
        prefix=given.prefix,
    )


def _names(text: str) -> list[str]:
    return text.replace(",", " ").split()


EXTENSION = Extension("jwt", "JSON web tokens of an issuer", settings=JwtSettings, checks={"issuer": _check}, way=_way)

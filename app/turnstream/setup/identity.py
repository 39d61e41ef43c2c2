"""The ways to authenticate that the settings and the program ask for."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from pydantic import SecretStr

from turnstream.api.identity.in_browsers import TokensInBrowsers
from turnstream.api.identity.issuer_keys import check_key_url
from turnstream.api.identity.local import LocalMachine
from turnstream.api.identity.proxy import TrustedProxy
from turnstream.api.identity.stored import StoredTokens
from turnstream.api.identity.way import Authenticate, LoginScopes
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.domain.identity import Scope, checked_scopes
from turnstream.storage.owners.tokens import Tokens

# Claims that the user can often change: who takes the name of another user there would be that owner here.
_MUTABLE = frozenset({"email", "name", "nickname", "preferred_username", "upn", "unique_name", "phone_number"})
_ORIGIN = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?")


@asynccontextmanager
async def open_ways(
    settings: Settings, tokens: Tokens, stored: StoredTokens, authenticate: Authenticate | None
) -> AsyncIterator[Sequence[Authenticate]]:
    """Raises ConfigError for settings that are wrong, and where others can reach a server that nobody may use."""
    scopes = _login_scopes(settings)
    ways = [authenticate] if authenticate is not None else []
    if settings.proxy_secret is not None:
        secret = _unguessable("TURNSTREAM_PROXY_SECRET", settings.proxy_secret)
        headers = settings.proxy_owner_header, settings.proxy_roles_header, settings.proxy_plan_header
        prefix = "proxy:" if settings.login_prefixes else ""
        ways.append(TrustedProxy(secret, scopes, *headers, prefix).identity_of)
    async with AsyncExitStack() as stack:
        if settings.jwt_issuer is not None:
            ways.append(await _jwt_tokens(settings, settings.jwt_issuer, scopes, stack))
        only_tokens = not ways
        ways.append(stored.identity_of)
        if settings.url_tokens or settings.token_cookie:
            origins = allowed_origins(settings)
            ways.append(TokensInBrowsers(stored, settings.url_tokens, settings.token_cookie, origins).identity_of)
        if only_tokens and settings.on_loopback:
            ways.append(LocalMachine(tokens).identity_of)
        elif only_tokens and not await tokens.exist():
            raise ConfigError(
                f"TURNSTREAM_HOST is {settings.host}, which other machines can reach, and there is no token yet: create"
                " one with `turnstream tokens create NAME`, or listen on 127.0.0.1."
            )
        yield ways


def allowed_origins(settings: Settings) -> frozenset[str]:
    """The origins whose pages may call the API. Raises ConfigError for what is none: `*` would let every page in."""
    origins = frozenset(_names(settings.cors_origins or ""))
    if wrong := sorted(origin for origin in origins if not _ORIGIN.fullmatch(origin)):
        raise ConfigError(
            f"TURNSTREAM_CORS_ORIGINS: {wrong[0]} is no origin; name each as `https://app.example` or"
            " `http://localhost:5173`: in small letters, without a path and without a slash at its end."
        )
    if settings.cors_credentials and not origins:
        raise ConfigError("TURNSTREAM_CORS_CREDENTIALS needs the origins in TURNSTREAM_CORS_ORIGINS.")
    return origins


def metrics_token(settings: Settings) -> str | None:
    """The token that `GET /metrics` needs. Raises ConfigError for one that could be guessed."""
    return None if settings.metrics_token is None else _unguessable("TURNSTREAM_METRICS_TOKEN", settings.metrics_token)


def _unguessable(name: str, setting: SecretStr) -> str:
    value = setting.get_secret_value()
    if len(value) < 16:
        raise ConfigError(f"{name} must have at least 16 characters.")
    return value


async def _jwt_tokens(settings: Settings, issuer: str, scopes: LoginScopes, stack: AsyncExitStack) -> Authenticate:
    # Not at the top: the library for signatures takes a tenth of a second, which servers without an issuer save.
    from turnstream.api.identity.jwt_tokens import KEY_TYPES, Issuer, open_jwt_tokens  # noqa: PLC0415

    algorithms = frozenset(_names(settings.jwt_algorithms))
    if not algorithms or algorithms - KEY_TYPES.keys():
        raise ConfigError(f"TURNSTREAM_JWT_ALGORITHMS must name some of {', '.join(KEY_TYPES)}.")
    audiences = frozenset(_names(settings.jwt_audience or ""))
    if not audiences:
        raise ConfigError(
            "TURNSTREAM_JWT_AUDIENCE must name the audience of tokens for this server: else the issuer's tokens for"
            " other servers would be accepted here."
        )
    claim = settings.jwt_owner_claim
    if claim.rpartition(".")[2] in _MUTABLE and not settings.jwt_owner_claim_is_fixed:
        raise ConfigError(
            f"TURNSTREAM_JWT_OWNER_CLAIM is {claim}, which users can change at many issuers, and then are another owner"
            " here: use `sub`, or set TURNSTREAM_JWT_OWNER_CLAIM_IS_FIXED=true if this issuer never gives one value to"
            " two users."
        )
    for name, url in (("TURNSTREAM_JWT_ISSUER", issuer), ("TURNSTREAM_JWT_KEYS_URL", settings.jwt_keys_url)):
        try:
            check_key_url(url or issuer)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}.") from None
    tokens = await stack.enter_async_context(
        open_jwt_tokens(
            Issuer(
                name=issuer,
                audiences=audiences,
                scopes=scopes,
                algorithms=algorithms,
                keys_url=settings.jwt_keys_url,
                audience_claim=settings.jwt_audience_claim,
                owner_claim=settings.jwt_owner_claim,
                roles_claim=settings.jwt_roles_claim,
                plan_claim=settings.jwt_plan_claim,
                cell_claim=settings.jwt_cell_claim,
                leeway=settings.jwt_leeway,
                type=settings.jwt_type,
                prefix="jwt:" if settings.login_prefixes else "",
            )
        )
    )
    return tokens.identity_of


def _login_scopes(settings: Settings) -> LoginScopes:
    """Raises ConfigError."""
    base = _scopes("TURNSTREAM_LOGIN_SCOPES", "" if settings.login_scopes == "none" else settings.login_scopes)
    by_role = {}
    for entry in (settings.login_roles or "").split(","):
        role, mark, scopes = entry.partition("=")
        if not entry.strip():
            continue
        if not mark or not role.strip():
            raise ConfigError("TURNSTREAM_LOGIN_ROLES must be such as `staff=read chat approve admin, guest=read`.")
        by_role[role.strip()] = _scopes("TURNSTREAM_LOGIN_ROLES", scopes)
    return LoginScopes(base, by_role)


def _scopes(setting: str, names: str) -> frozenset[Scope]:
    try:
        return frozenset(checked_scopes(_names(names)))
    except ValueError as error:
        raise ConfigError(f"{setting}: {error}.") from None


def _names(text: str) -> list[str]:
    return text.replace(",", " ").split()

"""Login on the page: people sign in at an OpenID provider, and their browsers get a session."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, SecretStr

from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import Context, Extension, Work
from turnstream.libraries.logins import LoginSection

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup
    from turnstream.api.identity.authenticator import Authenticate
    from turnstream.llm.models.catalog import Models
    from turnstream.storage.database import Database


class LoginSettings(LoginSection):
    owner_prefix = "jwt"  # the owners of the main issuer are the same with its tokens and with a login

    login_url: str | None = Field(
        None, description="public address of this server, for returns from issuers; required with an issuer"
    )
    login_issuer: str | None = Field(
        None, description="issuer where people sign in on the page, as in `issuer` of its OpenID configuration"
    )
    login_client_id: str | None = Field(None, description="id of this server as a client of the issuer")
    login_client_secret: SecretStr | None = Field(None, description="secret of this client; a public client has none")
    login_title: str | None = Field(None, description="name of the issuer on the page; by default its host")
    login_scope: str = Field("openid profile email", description="scopes of the request to the issuer")
    login_owner_claim: str = Field("sub", description="claim with the owner, as a path with dots")
    login_owner_claim_is_fixed: bool = Field(
        False,
        description="true: an owner claim such as `email` is accepted, because users cannot change it",
    )
    login_groups_claim: str | None = Field(None, description="claim with groups, the roles in `TURNSTREAM_LOGIN_ROLES`")
    login_plans: str | None = Field(
        None, description="plan by group, such as `staff=pro, guest=free`; the first match counts"
    )
    login_issuers_file: Path | None = Field(
        None, description="TOML file of further issuers, see [login on the page](identity.md#login-on-the-page)"
    )
    login_idle: float = Field(43_200, ge=300, description="a session ends after this time without a request")
    login_life: float = Field(604_800, ge=300, description="longest life of a session")


@asynccontextmanager
async def _stored_way(settings: Settings, database: "Database") -> AsyncIterator["Authenticate | None"]:
    from turnstream.extensions.login.issuers import read_logins

    logins = read_logins(settings)
    if logins is None:
        yield None
        return
    from turnstream.extensions.login.sessions import SessionCookies

    yield SessionCookies(database, logins, settings.section(LoginSettings).scopes()).identity_of


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.login.calls import GROUP

    return [GROUP]


def _work(context: Context) -> Work:
    from turnstream.extensions.login.issuers import read_logins

    logins = read_logins(context.settings)
    if logins is None:
        return Work()
    from turnstream.extensions.login.flow import LoginFlow

    sign_in = LoginFlow(context.database, logins, context.settings.section(LoginSettings).scopes())
    return Work(state=sign_in, tasks=[sign_in.run])


async def _check(settings: Settings, _: "Models", ping: bool) -> str:
    from turnstream.extensions.login.issuers import read_logins

    logins = read_logins(settings)
    if logins is None:
        return "none"
    if not ping:
        return f"{', '.join(each.url for each in logins.issuers.values())}; only --ping asks"
    from turnstream.extensions.login.provider import check_provider

    found = []
    for issuer in logins.issuers.values():
        try:
            found.append(await check_provider(issuer))
        except ValueError as error:
            raise ConfigError(f"Nobody can sign in at {issuer.url}: {error}.") from error
    return "; ".join(found)


EXTENSION = Extension(
    "login",
    "login on the page at an OpenID provider",
    settings=LoginSettings,
    checks={"login": _check},
    calls=_calls,
    work=_work,
    stored_way=_stored_way,
)

"""The settings of a login, the file with more issuers, and the doctor's line about the login."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.issuer import issuing
from tests.support.openid_issuer import CLIENT, OpenIdIssuer
from tests.support.pages import BLOCKS, ROOT
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import installed
from turnstream.extensions.login import EXTENSION
from turnstream.extensions.login.issuers import read_logins
from turnstream.libraries.logins import LoginSection, owner_prefixes
from turnstream.llm.models.catalog import Models

GOOD: dict[str, Any] = {
    "login_issuer": "https://issuer.example",
    "login_client_id": "turnstream",
    "login_url": "https://chat.example/",
}


def test_each_extension_for_logins_at_another_server_has_a_prefix() -> None:
    """A name of an issuer in the file of issuers must not give the owners of another extension."""
    sections = [each.settings for each in installed().values() if each.settings is not None]
    logins = [section for section in sections if issubclass(section, LoginSection)]
    assert {section.owner_prefix for section in logins} == {"jwt", "proxy"} == owner_prefixes()


@pytest.mark.parametrize("prefix", sorted(owner_prefixes()))
def test_the_setting_and_the_page_name_each_prefix(prefix: str) -> None:
    described = LoginSection.model_fields["login_prefixes"].description
    for text in (described, (ROOT / "docs/identity.md").read_text(encoding="utf-8")):
        assert f"`{prefix}:NAME`" in str(text)


def test_settings_are_off_by_default() -> None:
    assert read_logins(Settings(_env_file=None)) is None
    logins = read_logins(Settings(_env_file=None, **GOOD))
    assert logins is not None
    assert (logins.base, list(logins.issuers)) == ("https://chat.example", ["main"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"login_client_id": None}, "TURNSTREAM_LOGIN_CLIENT_ID"),
        ({"login_url": None}, "TURNSTREAM_LOGIN_URL"),
        ({"login_url": "http://chat.example"}, "must begin with https://"),
        ({"login_url": "https://chat.example/?x"}, "no query"),
        ({"login_url": "chat"}, "must begin with https://"),
        ({"login_issuer": "http://issuer.example"}, "TURNSTREAM_LOGIN_ISSUER: http://issuer.example must begin"),
        ({"login_owner_claim": "email"}, "TURNSTREAM_LOGIN_OWNER_CLAIM_IS_FIXED=true"),
        ({"login_plans": "staff"}, "TURNSTREAM_LOGIN_PLANS"),
        ({"login_idle": 1}, "TURNSTREAM_LOGIN_IDLE"),
    ],
)
def test_a_wrong_setting_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_logins(Settings(_env_file=None, **{**GOOD, **change}))
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[issuer.main]\n", "is none of"),
        *((f"[issuer.{prefix}]\n", "is none of") for prefix in sorted(owner_prefixes())),
        ("[issuer.UPPER]\n", "small letters"),
        ("[issuer.one]\n", "`issuer`: Field required"),
        ('[issuer.one]\nissuer="https://a.example"\nclient_id="x"\nclient_secret="s"\n', "client_secret"),
        ('[issuer.one]\nissuer="https://a.example"\nclient_id="x"\nclient_secret_env="NO_SUCH"\n', "NO_SUCH"),
        ('[issuer.one]\nissuer="http://a.example"\nclient_id="x"\n', "must begin with https://"),
        ('[issuer.one]\nissuer="https://issuer.example"\nclient_id="x"\n', "named already"),
        ('[issuer.one]\nissuer="https://a.example"\nclient_id="x"\nowner_claim="email"\n', "owner_claim is email"),
        ("[other]\n", "alone"),
        ("issuer = 1\n", "alone"),
        ("[", "cannot be read"),
    ],
)
def test_a_wrong_file_of_issuers_is_named(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "issuers.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_logins(Settings(_env_file=None, login_prefixes=True, login_issuers_file=file, **GOOD))
    assert words in str(raised.value)
    assert str(file) in str(raised.value) or words == "named already"
    with pytest.raises(ConfigError, match="LOGIN_PREFIXES"):
        read_logins(Settings(_env_file=None, login_issuers_file=file, **GOOD))


def test_the_issuers_of_the_page_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = (block.code for block in BLOCKS if block[:3] == ("docs/identity.md", "Login on the page", "toml"))
    file = tmp_path / "issuers.toml"
    file.write_text(text)
    monkeypatch.setenv("PARTNER_SECRET", "s")
    logins = read_logins(Settings(_env_file=None, login_prefixes=True, login_issuers_file=file, **GOOD))
    assert logins is not None
    assert list(logins.issuers) == ["main", "partner"]


@pytest.mark.asyncio(loop_scope="session")
async def test_the_doctor_asks_the_issuer(issuer: OpenIdIssuer) -> None:
    given = {**GOOD, "login_issuer": issuer.url, "login_client_id": CLIENT}
    settings, check = Settings(_env_file=None, **given), EXTENSION.checks["login"]
    assert await check(Settings(_env_file=None), Models([]), True) == "none"
    assert await check(settings, Models([]), False) == f"{issuer.url}; only --ping asks"
    assert issuer.requests == []
    assert await check(settings, Models([]), True) == f"{issuer.url} has 1 key"
    issuer.published = []
    with pytest.raises(ConfigError, match="no key"):
        await check(settings, Models([]), True)
    issuer.is_away = True
    with pytest.raises(ConfigError, match=f"Nobody can sign in at {issuer.url}: "):
        await check(settings, Models([]), True)
    async with issuing() as plain:  # an issuer for APIs, which has no login page
        with pytest.raises(ConfigError, match="no `authorization_endpoint`"):
            await check(Settings(_env_file=None, **{**given, "login_issuer": plain.url}), Models([]), True)

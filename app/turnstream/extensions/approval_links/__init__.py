"""Approval links: signed addresses. Each address shows one waiting call, and accepts the decision about this call."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field, HttpUrl, SecretStr

from turnstream.config import Section, Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import Context, Extension, Work

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup
    from turnstream.extension import CallLinks
    from turnstream.extensions.approval_links.links import LinkSigner
    from turnstream.llm.models.catalog import Models
    from turnstream.storage.database import Database

_SHORTEST_SECRET = 32  # characters


class ApprovalLinkSettings(Section):
    approval_link_url: HttpUrl | None = Field(
        None, description="public address of this server for approval links; without it no links are made"
    )
    approval_link_secrets: SecretStr | None = Field(
        None,
        description="keys of approval links, separated by commas, at least 32 characters each: the first"
        " signs, all verify",
    )
    approval_link_life: float = Field(
        604_800, gt=0, description="seconds until a link expires, unless the call expires before"
    )


def signer_of(settings: Settings) -> "LinkSigner | None":
    """Returns the signer that the settings describe, or None without approval links. Raises ConfigError."""
    from turnstream.extensions.approval_links.links import LinkSigner

    given = settings.section(ApprovalLinkSettings)
    if given.approval_link_url is None and given.approval_link_secrets is None:
        return None
    if given.approval_link_url is None or given.approval_link_secrets is None:
        raise ConfigError(
            "TURNSTREAM_APPROVAL_LINK_URL and TURNSTREAM_APPROVAL_LINK_SECRETS must be set together: a link has an"
            " address and a signature."
        )
    secrets = [each.strip() for each in given.approval_link_secrets.get_secret_value().split(",")]
    if any(len(each) < _SHORTEST_SECRET for each in secrets):
        raise ConfigError(
            f"TURNSTREAM_APPROVAL_LINK_SECRETS must have keys of at least {_SHORTEST_SECRET} characters, separated by"
            " commas."
        )
    return LinkSigner(str(given.approval_link_url).rstrip("/"), tuple(secrets), given.approval_link_life)


async def _check(settings: Settings, _: "Models", __: bool) -> str:
    signer = signer_of(settings)
    return "none is made" if signer is None else f"{len(signer.secrets)} keys, the first signs"


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.approval_links.calls import GROUP

    return [GROUP]


def _work(context: Context) -> Work:
    return Work(state=signer_of(context.settings))


def _links(settings: Settings, database: "Database") -> "CallLinks | None":
    from turnstream.extensions.approval_links.links import links_of

    signer = signer_of(settings)
    return None if signer is None else links_of(signer, database)


EXTENSION = Extension(
    "approval_links",
    "signed addresses that show one call and take the decision about it",
    settings=ApprovalLinkSettings,
    checks={"approval links": _check},
    calls=_calls,
    work=_work,
    call_links=_links,
)

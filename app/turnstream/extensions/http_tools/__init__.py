"""Tools behind URLs, declared in the tools file or by requests."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, SecretStr

from turnstream.config import Section, Settings
from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.libraries.tool_sources.kinds import SourceKind


class HttpToolsSettings(Section):
    observed: ClassVar = {"signing_secret": "signing keys"}

    signing_secret: SecretStr | None = Field(
        None, description="key that signs calls of HTTP tools: base64, with or without whsec_ before it"
    )
    http_tools_allow: str | None = Field(
        None,
        description="internal hosts and networks that the operator's HTTP tools may call, also without TLS,"
        " separated by commas",
    )
    request_tools: Literal["public", "listed", "off"] = Field(
        "public",
        description="hosts that HTTP tools of requests may call: public ones and listed ones (public), listed"
        " ones (listed), or none (off)",
    )
    request_tools_allow: str | None = Field(
        None, description="the listed hosts and networks, also internal ones and without TLS, separated by commas"
    )
    request_tools_timeout: float = Field(60, gt=0, le=600, description="longest time of a call of such a tool")
    tool_secrets: str | None = Field(
        None,
        description="variables that such tools may name in headers as `${secret:NAME}`, each with its host:"
        " `NAME=host`, separated by commas",
    )


def _tool_sources(settings: Settings) -> "Sequence[SourceKind]":
    from turnstream.extensions.http_tools.declared import http_tools

    return [http_tools(settings.section(HttpToolsSettings))]


EXTENSION = Extension(
    "http_tools", "tools behind URLs, of the operator and of requests", HttpToolsSettings, tool_sources=_tool_sources
)

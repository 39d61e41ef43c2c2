"""The calls of the API for prompts and resources of MCP servers."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, cast

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.http.endpoint import Endpoint, Limit
from turnstream.api.http.reading import read_body
from turnstream.api.schemas.blocks import BlockIn, DocumentBlockIn, ImageBlockIn, TextBlockIn, UploadIn
from turnstream.api.schemas.fields import Body, Storable
from turnstream.api.services import identity_of, services_and_owner, services_of
from turnstream.api.views import json_response
from turnstream.domain.errors import Forbidden, NotFound, RequestRefused
from turnstream.domain.kinds import IMAGE
from turnstream.domain.media import MEDIA, media_type_of
from turnstream.extensions.mcp.failures import failures_as
from turnstream.kit.text import storable
from turnstream.libraries.uploading import require_uploads, take_upload
from turnstream.tools.tool import File, OutcomePart

# The SDK is imported only if MCP servers are declared.
if TYPE_CHECKING:
    from turnstream.extensions.mcp.connection import McpConnection
    from turnstream.extensions.mcp.offers import Offers, ServerOffers
    from turnstream.extensions.mcp.session import OfferKind

_MOST_ARGUMENTS: Final = 50
_LONGEST_TEXT: Final = 1_000  # characters of a title or description


class SilentServerOut(BaseModel):
    """An MCP server that did not answer, and the reason."""

    server: str
    reason: str
    wants_sign_in: Annotated[bool, Field(description="whether it answers when the owner has signed in")]


class PromptArgumentOut(BaseModel):
    name: str
    title: str
    description: str
    required: bool


class PromptOut(BaseModel):
    """A prompt of an MCP server."""

    server: str
    name: str
    title: str
    description: str
    arguments: list[PromptArgumentOut]


class PromptList(BaseModel):
    prompts: list[PromptOut]
    unavailable: list[SilentServerOut]


class ResourceOut(BaseModel):
    """A resource of an MCP server."""

    server: str
    uri: str
    name: str
    title: str
    description: str
    media_type: str | None
    size: Annotated[int | None, Field(description="bytes, if the server names them")]


class ResourceTemplateOut(BaseModel):
    """A template for the addresses of resources, with variables (RFC 6570)."""

    server: str
    uri_template: str
    name: str
    title: str
    description: str
    media_type: str | None


class ResourceList(BaseModel):
    resources: list[ResourceOut]
    templates: list[ResourceTemplateOut]
    unavailable: list[SilentServerOut]


class PromptIn(Body):
    """A prompt, with a text for each of its arguments."""

    server: Storable
    name: Annotated[Storable, Field(min_length=1, max_length=2000)]
    arguments: Annotated[dict[Storable, Storable], Field(max_length=_MOST_ARGUMENTS)] = Field(default_factory=dict)


class CompletionIn(PromptIn):
    """An argument of a prompt and the beginning of its value. `arguments` has the arguments that are complete."""

    argument: Annotated[Storable, Field(min_length=1, max_length=2000)]
    value: Annotated[Storable, Field(max_length=2000)] = ""


class PromptCompletion(BaseModel):
    values: Annotated[list[str], Field(description="the values that the server proposes, at most 100")]


class ResourceIn(Body):
    server: Storable
    uri: Annotated[Storable, Field(min_length=1, max_length=2000)]


class OfferBlocks(BaseModel):
    """Blocks for a message that is not posted yet."""

    blocks: list[BlockIn]


# --- lists -----------------------------------------------------------------------------------------------------------


async def list_prompts(request: Request) -> Response:
    _, owner = services_and_owner(request)
    offers = offers_of(request)
    found = await offers.of_kind(owner, "prompts") if offers is not None else ()
    prompts = [
        PromptOut(
            server=each.server,
            name=prompt.name,
            title=_shown(prompt.title) or prompt.name,
            description=_shown(prompt.description),
            arguments=[
                PromptArgumentOut(
                    name=argument.name,
                    title=_shown(argument.title) or argument.name,
                    description=_shown(argument.description),
                    required=bool(argument.required),
                )
                for argument in prompt.arguments or ()
            ],
        )
        for each in found
        for prompt in each.prompts
    ]
    return json_response(PromptList(prompts=prompts, unavailable=_silent(found)))


async def list_resources(request: Request) -> Response:
    _, owner = services_and_owner(request)
    offers = offers_of(request)
    kinds: Sequence[OfferKind] = ("resources", "templates")
    found = [] if offers is None else await asyncio.gather(*(offers.of_kind(owner, kind) for kind in kinds))
    servers = [each for listed in found for each in listed]
    resources = [
        ResourceOut(
            server=each.server,
            uri=resource.uri,
            name=resource.name,
            title=_shown(resource.title) or resource.name,
            description=_shown(resource.description),
            media_type=resource.mime_type,
            size=resource.size,
        )
        for each in servers
        for resource in each.resources
    ]
    templates = [
        ResourceTemplateOut(
            server=each.server,
            uri_template=template.uri_template,
            name=template.name,
            title=_shown(template.title) or template.name,
            description=_shown(template.description),
            media_type=template.mime_type,
        )
        for each in servers
        for template in each.templates
    ]
    return json_response(ResourceList(resources=resources, templates=templates, unavailable=_silent(servers)))


def _shown(text: str | None) -> str:
    """Returns a server's text for display, truncated."""
    return storable((text or "")[:_LONGEST_TEXT]).strip()


def _silent(servers: "Sequence[ServerOffers]") -> list[SilentServerOut]:
    """Returns each server that did not answer, once."""
    found = {each.server: each for each in servers if each.failure}
    return [
        SilentServerOut(server=each.server, reason=each.failure, wants_sign_in=each.wants_sign_in)
        for each in found.values()
    ]


# --- use -------------------------------------------------------------------------------------------------------------


async def render_prompt(request: Request) -> Response:
    """Returns the messages of a prompt as blocks. Files in the messages become uploads of the caller."""
    sent, _ = await read_body(request, PromptIn)
    offers, connection = await _found(request, sent.server, "prompts")
    with failures_as("name"):
        parts = await offers.prompt(identity_of(request).owner, connection, sent.name, sent.arguments)
    return await _blocks(request, parts, "name")


async def complete_prompt(request: Request) -> Response:
    sent, _ = await read_body(request, CompletionIn)
    offers, connection = await _found(request, sent.server, "prompts")
    owner = identity_of(request).owner
    with failures_as("argument"):
        values = await offers.completions(owner, connection, sent.name, sent.argument, sent.value, sent.arguments)
    return json_response(PromptCompletion(values=list(values)))


async def attach_resource(request: Request) -> Response:
    """Reads a resource, and returns it as blocks. Its files become uploads of the caller."""
    sent, _ = await read_body(request, ResourceIn)
    offers, connection = await _found(request, sent.server, "resources")
    with failures_as("uri"):
        files = await offers.resource(identity_of(request).owner, connection, sent.uri)
    return await _blocks(request, files, "uri")


async def _found(request: Request, server: str, kind: "OfferKind") -> "tuple[Offers, McpConnection]":
    identity = identity_of(request)
    require_uploads(identity)
    if identity.is_bound:
        raise Forbidden("A token for a single chat or turn reaches no MCP server.")
    offers = offers_of(request)
    connection = await offers.find(identity.owner, server, kind) if offers is not None else None
    if offers is None or connection is None:
        raise NotFound(f"There is no MCP server {server!r} with {kind} for the caller.")
    return offers, connection


def offers_of(request: Request) -> "Offers | None":
    return cast("Offers | None", services_of(request).states.get("mcp"))


async def _blocks(request: Request, parts: Sequence[OutcomePart], field: str) -> Response:
    """Returns the parts as blocks for a message. All parts are checked before the first file is stored."""
    http, size = services_of(request).http, 0
    for part in parts:
        size += len(part.encode() if isinstance(part, str) else part.content)
        most = http.max_turn_bytes if isinstance(part, str) else http.max_upload_bytes
        if isinstance(part, File) and media_type_of(part.content) is None:
            named = f"`{field}` leads to {part.called}, which is empty or of no type that a message may have"
            raise RequestRefused(f"{named}: {', '.join(MEDIA)}.", field=field)
        if size > most:
            raise RequestRefused(f"`{field}` leads to more than the {most:,} bytes of a message.", field=field)
    blocks = [await _block(request, part) for part in parts]
    return json_response(OfferBlocks(blocks=blocks))


async def _block(request: Request, part: OutcomePart) -> TextBlockIn | ImageBlockIn | DocumentBlockIn:
    if isinstance(part, str):
        return TextBlockIn(type="text", text=part)
    media_type = media_type_of(part.content)
    assert media_type is not None
    source = UploadIn(type="upload", id=(await take_upload(request, media_type, part.content)).id)
    if media_type.block == IMAGE:
        return ImageBlockIn(type="image", source=source)
    return DocumentBlockIn(type="document", source=source, title=part.called)


_USE: Final[tuple[Limit, ...]] = ("writes", "uploads")
ENDPOINTS = (
    Endpoint(
        "GET /api/mcp/prompts", list_prompts, "The prompts of MCP servers for the owner, by server", gives=PromptList
    ),
    Endpoint(
        "POST /api/mcp/prompts/render",
        render_prompt,
        "Get a prompt as blocks of a message; its files become uploads",
        PromptIn,
        OfferBlocks,
        problems=(404,),
        limits=_USE,
        reach="handler",
        scopes=("chat", "send"),
    ),
    Endpoint(
        "POST /api/mcp/prompts/complete",
        complete_prompt,
        "Get the values that a server proposes for an argument of a prompt",
        CompletionIn,
        PromptCompletion,
        problems=(404,),
        limits=("writes",),
        reach="handler",
        scopes=("chat", "send"),
    ),
    Endpoint(
        "GET /api/mcp/resources",
        list_resources,
        "The resources of MCP servers for the owner, and templates of their addresses",
        gives=ResourceList,
    ),
    Endpoint(
        "POST /api/mcp/resources/attach",
        attach_resource,
        "Read a resource into uploads; returns their blocks for a message",
        ResourceIn,
        OfferBlocks,
        problems=(404,),
        limits=_USE,
        reach="handler",
        scopes=("chat", "send"),
    ),
)

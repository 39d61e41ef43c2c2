"""The calls of the search settings."""

from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint
from turnstream.api.http.reading import read_body
from turnstream.api.services import services_and_owner
from turnstream.api.views import json_response
from turnstream.extensions.search.index import SearchIndex, SearchSettings
from turnstream.extensions.search.schemas import SearchSettingsIn, SearchSettingsOut


async def get_search_settings(request: Request) -> Response:
    index, owner = _index_and_owner(request)
    return json_response(_settings_out(await index.settings(owner)))


async def put_search_settings(request: Request) -> Response:
    index, owner = _index_and_owner(request)
    new, _ = await read_body(request, SearchSettingsIn)
    settings = SearchSettings(new.language, new.tool_results)
    await index.change_settings(owner, settings)
    return json_response(_settings_out(settings))


def _index_and_owner(request: Request) -> tuple[SearchIndex, str]:
    services, owner = services_and_owner(request)
    return cast("SearchIndex", services.storage.search), owner


def _settings_out(settings: SearchSettings) -> SearchSettingsOut:
    return SearchSettingsOut(language=settings.language, tool_results=settings.tool_results)


CALLS = CallGroup(
    (
        Endpoint(
            "GET /api/search/settings",
            get_search_settings,
            "How the owner's texts are indexed for the search",
            gives=SearchSettingsOut,
        ),
        Endpoint(
            "PUT /api/search/settings",
            put_search_settings,
            "Set the language of the owner's texts, and whether results of tools are indexed",
            SearchSettingsIn,
            SearchSettingsOut,
            problems=(422,),
            limits=("writes",),
        ),
    ),
    "Search",
    "How texts are indexed for the search, which is a query of the list of chats",
)

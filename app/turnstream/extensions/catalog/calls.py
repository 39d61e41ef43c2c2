"""The API calls that list models and tools."""

from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint
from turnstream.extensions.catalog.endpoints import list_models, list_tools
from turnstream.extensions.catalog.schemas import ModelsOut, ToolsOut

CALLS = CallGroup(
    (
        Endpoint("GET /api/models", list_models, "The models of this server", gives=ModelsOut, reach="handler"),
        Endpoint("GET /api/tools", list_tools, "The tools of this server", gives=ToolsOut, reach="handler"),
    ),
    "Catalog",
    "The models and tools of this server",
)

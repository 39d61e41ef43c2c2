import pytest

from tests.support.http_client import Client
from tests.support.http_server import MODEL, serving
from tests.unit.test_tools_of_requests import Counted
from turnstream.tools.toolset import Toolset

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_default_model_is_marked(api: Client) -> None:
    models = (await api.json("GET", "/api/models"))["models"]
    assert [model["id"] for model in models if model["default"]] == [MODEL]


async def test_the_list_of_tools_looks_at_those_of_a_source_as_often_whatever_their_number(database_url: str) -> None:
    few, many = Counted(5), Counted(500)
    for source in (few, many):
        async with serving(database_url, Toolset([], sources=[source])) as server, Client(server.url) as client:
            source.looks = 0
            assert len((await client.json("GET", "/api/tools"))["tools"]) == len(source.tools())
    assert many.looks == few.looks

import pytest

from tests.support.http_client import Client
from tests.support.http_server import MODEL

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_default_model_is_marked(api: Client) -> None:
    models = (await api.json("GET", "/api/models"))["models"]
    assert [model["id"] for model in models if model["default"]] == [MODEL]

import pytest

from tests.integration.api.client import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "PATCH", "DELETE", "TRACE"])
async def test_a_wrong_method_is_a_problem_that_names_the_right_ones(api: Client, method: str) -> None:
    answer = await api.request(method, "/api/chats")
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


async def test_a_path_that_is_not_there_is_a_problem(api: Client) -> None:
    assert (await api.get("/api/nothing")).status_code == 404


async def test_head_gives_the_headers_of_get_and_no_body(api: Client) -> None:
    chat = await api.chat()
    for path in (chat, "/api/chats", "/api/models", "/healthz", "/openapi.json"):
        head, get = await api.head(path), await api.get(path)
        assert head.status_code == get.status_code == 200
        assert not head.content
        assert head.headers["content-length"] == str(len(get.content))


async def test_head_of_a_stream_does_not_follow_it(api: Client) -> None:
    said = await api.ask(await api.chat())
    head = await api.head(said.stream_url)
    assert head.status_code == 200
    assert head.headers["content-type"].startswith("text/event-stream")
    assert not head.content

"""A turn continues the trace of a caller who uses OpenAI's API."""

from openai import AsyncOpenAI

from tests.support.http_server import MODEL, serving
from tests.support.spans import PARENT, collected, of_trace


async def test_a_response_belongs_to_the_trace_of_its_request(database_url: str) -> None:
    with collected() as spans:
        async with serving(database_url) as server:
            token = await server.token("ada")
            async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=token, max_retries=0) as client:
                await client.responses.create(model=MODEL, input="Hi", extra_headers={"traceparent": PARENT})
        names = {span.name for span in of_trace(spans)}
    assert {"POST /v1/responses", "invoke_agent turnstream"} <= names

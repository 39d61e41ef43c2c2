"""The server of an HTTP tool continues the trace of the turn."""

from tests.support.canned import Answer, Asked, CannedServer, served
from tests.support.http_client import Client, said
from tests.support.http_server import serving
from tests.support.spans import PARENT, collected, span_of
from turnstream.domain.turns import HttpCall, ToolSpec
from turnstream.extensions.http_tools.tool import HttpTools
from turnstream.libraries.outgoing.addresses import Allowed
from turnstream.scripted import message_of, text, tool_use
from turnstream.tools.policy import Policy
from turnstream.tools.toolset import Toolset


class Failing(CannedServer):
    """Rejects its first request with status 503."""

    def answer_to(self, asked: Asked) -> Answer:
        return Answer(b"{}", 503 if len(self.requests) == 1 else 200, {"content-type": "application/json"})


async def test_each_try_of_a_tool_has_the_traceparent_of_the_call(database_url: str) -> None:
    with collected() as spans:
        async with served(Failing()) as outside, HttpTools(Allowed.of(["127.0.0.1"])) as http_tools:
            spec = ToolSpec("near", "Near.", '{"type": "object"}', read_only=True, http=HttpCall(outside.url))
            toolset = Toolset([http_tools.operator_tool(spec, Policy(retries=1))], backoff=lambda retry: 0)
            async with serving(database_url, toolset) as server, Client(server.url) as api:
                model = server.scripts.model(message_of(tool_use("near", {}, "a")), message_of(text("Done.")))
                message = {**said("Call."), "model": model}
                asked = await api.json("POST", "/api/turns", 201, json=message, headers={"traceparent": PARENT})
                await api.events(asked["stream_url"])
        sent = [request.headers["traceparent"] for request in outside.requests]
    assert [span_of(spans, each) for each in sent] == ["execute_tool near"] * 2

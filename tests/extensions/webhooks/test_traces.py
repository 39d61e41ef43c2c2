"""The receiver of a webhook continues the trace of the turn."""

import asyncio
from typing import Any

from tests.support.canned import Answer, Asked, CannedServer, served
from tests.support.http_client import Client, said
from tests.support.http_server import serving
from tests.support.spans import PARENT, collected, span_of


class Receiver(CannedServer):
    """A receiver of webhooks that sets `came` at its first request."""

    def __init__(self) -> None:
        super().__init__()
        self.came = asyncio.Event()

    def answer_to(self, asked: Asked) -> Answer:
        self.came.set()
        return Answer(b"{}")


async def test_a_webhook_has_the_traceparent_of_its_delivery(database_url: str) -> None:
    with collected() as spans:
        async with served(Receiver()) as outside:
            hook: dict[str, Any] = {"webhook_url": f"{outside.url}/hook", "webhook_secret": f"whsec_{'MfKQ' * 8}"}
            async with serving(database_url, **hook) as server, Client(server.url) as api:
                message = {**said("Hi."), "model": "plain"}
                asked = await api.json("POST", "/api/turns", 201, json=message, headers={"traceparent": PARENT})
                await api.events(asked["stream_url"])
                await outside.came.wait()
        (request,) = outside.requests
    assert span_of(spans, request.headers["traceparent"]) == "webhook"

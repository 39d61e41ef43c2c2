"""OpenAI's Responses API, and those that imitate it."""

from app.llm.openai import OpenAIProvider
from app.llm.provider import ModelRequest
from app.llm.responses_render import render
from app.llm.responses_wire import ResponsesWire


class OpenAIResponsesProvider(OpenAIProvider):
    path = "/responses"

    def body(self, request: ModelRequest) -> bytes:
        return render(request, self.quirks)

    def wire(self, request_id: str | None, body: bytes) -> ResponsesWire:
        return ResponsesWire(request_id, seed=body)

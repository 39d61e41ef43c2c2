"""The functions that render a request, for each installed API of models with a form of its own."""

from collections.abc import Callable, Mapping
from typing import Final

from tests.support.model_apis import TABLES
from turnstream.extensions.gemini.render import render as render_gemini
from turnstream.extensions.openai.chat.render import render as render_chat
from turnstream.extensions.openai.responses.render import render as render_responses
from turnstream.libraries.providers.anthropic.render import render as render_anthropic
from turnstream.llm.provider import ModelRequest

RENDERERS: Final[Mapping[str, Callable[[ModelRequest], bytes]]] = {
    "anthropic": render_anthropic,
    "gemini": render_gemini,
    "openai-chat": render_chat,
    "openai-responses": render_responses,
}
assert RENDERERS.keys() == TABLES.keys(), "a new API needs its renderer here"

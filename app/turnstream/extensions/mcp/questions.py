"""Converts the questions that MCP servers ask a person to turnstream's questions."""

from urllib.parse import urlsplit

from mcp import types
from msgspec.json import encode as to_json

from turnstream.kit.text import storable
from turnstream.tools.schemas import InputSchema
from turnstream.tools.tool import PersonQuestion

_MAX_QUESTION = 10_000  # characters of the displayed message and URL


def question_of(sent: types.ElicitRequestParams, seconds: float) -> PersonQuestion | None:
    """Converts a question. Returns None if the schema is invalid, the URL is unsafe, or the text is too long."""
    message = storable(sent.message)
    if max(len(message), len(getattr(sent, "url", ""))) > _MAX_QUESTION:
        return None
    if isinstance(sent, types.ElicitRequestURLParams):
        is_web = urlsplit(sent.url).scheme in {"http", "https"}
        return PersonQuestion(message, seconds, url=storable(sent.url)) if is_web else None
    try:
        schema = InputSchema.checked(storable(to_json(sent.requested_schema).decode()))
    except ValueError:
        return None
    return PersonQuestion(message, seconds, schema=schema.text)

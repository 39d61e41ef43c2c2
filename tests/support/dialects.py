"""The dialects: extensions that answer messages in a protocol other than the server's own."""

from collections.abc import Mapping
from typing import Final

# The name of each dialect in the tables of the pages, in the order of the tables.
DIALECTS: Final[Mapping[str, str]] = {
    "ai_sdk": "AI SDK",
    "ag_ui": "AG-UI",
    "openai_api": "OpenAI",
    "anthropic_api": "Anthropic",
}

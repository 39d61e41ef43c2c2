"""JSON of models: parsed as far as needed, forwarded as the received bytes. Pure."""

from typing import Any

import msgspec
from msgspec import Raw

members_of = msgspec.json.Decoder(dict[str, Raw]).decode


def to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def is_object(text: str) -> bool:
    try:
        members_of(text)
    except (ValueError, RecursionError):
        return False
    return True

"""JSON from models: parsed only as far as needed, and forwarded in the bytes that were received. Pure."""

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

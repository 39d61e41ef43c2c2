"""JSON that others wrote: read as far as it is needed, and handed on as it came. Pure."""

import json
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from app.kit.text import storable

NULL = Raw(b"null")
members_of = msgspec.json.Decoder(dict[str, Raw]).decode


def encoded(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def words_of(raw: Raw | bytes) -> str:
    """The same as text, whatever the bytes are."""
    return storable(bytes(raw).decode("utf-8", "replace"))


def rest_of(members: Mapping[str, Raw], known: Collection[str]) -> dict[str, Raw]:
    """What else is there, and is not null."""
    return {name: raw for name, raw in members.items() if name not in known and bytes(raw) != b"null"}


def rest_as_text(members: Mapping[str, Raw], known: Collection[str]) -> str | None:
    rest = rest_of(members, known)
    return words_of(msgspec.json.encode(rest)) if rest else None


def is_object(text: str) -> bool:
    try:
        members_of(text)
    except (ValueError, RecursionError):
        return False
    return True


def mended(text: str) -> str | None:
    """The same JSON, with U+FFFD for half surrogate pairs, which neither msgspec nor a provider takes. None for what is
    no JSON.
    """
    try:
        return storable(json.dumps(json.loads(text), ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):
        return None

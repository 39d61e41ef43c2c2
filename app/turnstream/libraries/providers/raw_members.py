"""Members of a provider's JSON, kept as the received bytes. Pure."""

import json
from collections.abc import Collection, Mapping
from typing import Final

import msgspec
from msgspec import Raw

from turnstream.kit.text import storable

NULL: Final = Raw(b"null")


def decode_text(raw: Raw | bytes) -> str:
    """Decodes any bytes: invalid UTF-8, and characters that cannot be stored, become U+FFFD."""
    return storable(bytes(raw).decode("utf-8", "replace"))


def other_members(members: Mapping[str, Raw], known: Collection[str]) -> dict[str, Raw]:
    """Returns the members that are neither in `known` nor null."""
    return {name: raw for name, raw in members.items() if name not in known and bytes(raw) != b"null"}


def other_members_json(members: Mapping[str, Raw], known: Collection[str]) -> str | None:
    others = other_members(members, known)
    return decode_text(msgspec.json.encode(others)) if others else None


def repaired_json(text: str) -> str | None:
    """Replaces lone surrogates by U+FFFD, because neither msgspec nor a provider accepts them. Returns None if the text
    is not JSON.
    """
    try:
        return storable(json.dumps(json.loads(text), ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):
        return None

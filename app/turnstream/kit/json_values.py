"""A bound for JSON texts. Decoding a text with many values takes longer than its size suggests, and all requests of a
replica wait meanwhile.
"""

# The most strings in a text, and the most items of its lists and objects.
MOST_VALUES = 50_000
_BEGINNING = 250_000


def has_too_many_values(json: str | bytes) -> bool:
    """Returns whether a text that may be JSON has more than `MOST_VALUES` strings or items, without decoding it."""
    if len(json) <= MOST_VALUES:
        return False
    if len(json) > _BEGINNING and has_too_many_values(json[:_BEGINNING]):
        return True  # avoids a search through megabytes
    text = json.encode("utf-8", "replace") if isinstance(json, str) else json
    if sum(map(text.count, (b",", b"[", b"{", b'"'))) <= MOST_VALUES:
        return False
    if b"\\" in text:
        text = text.replace(rb"\\", b"").replace(rb"\"", b"")
    if text.count(b'"') > 2 * MOST_VALUES:
        return True
    outside = b"".join(text.split(b'"')[::2])
    return sum(map(outside.count, (b",", b"[", b"{"))) > MOST_VALUES

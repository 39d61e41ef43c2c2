"""Estimates the decoding time of JSON, as a weight. Pure."""

# Bytes of plain text that take as long to decode as one escape, quote or comma (`_SIGN`), or as one object or list
# (`_OBJECT`).
_SIGN, _OBJECT = 9, 100


def weight_of(json: bytes) -> int:
    """Returns the number of bytes of plain text that would take as long to decode as this JSON."""
    signs, objects = sum(map(json.count, (b"\\", b'"', b","))), json.count(b"{") + json.count(b"[")
    return len(json) + _SIGN * signs + _OBJECT * objects

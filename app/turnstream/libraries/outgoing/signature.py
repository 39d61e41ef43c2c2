"""Signs request bodies by the Standard Webhooks scheme. A signature proves the sender and the time."""

import base64
import binascii
import hmac
from collections.abc import Mapping

ID = "webhook-id"
TIMESTAMP = "webhook-timestamp"
SIGNATURE = "webhook-signature"

_PREFIX = "whsec_"
_VERSION = "v1,"


def key_of(secret: str) -> bytes:
    """Returns the bytes of a secret in base64, which may begin with `whsec_`. Raises ValueError."""
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise ValueError("a signing secret must be base64, with or without whsec_ before it")
    return key


def sign(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """Returns the signature of a body. `timestamp` is in whole seconds since 1970."""
    signed = f"{id}.{timestamp}.".encode() + body
    return _VERSION + base64.b64encode(hmac.digest(key_of(secret), signed, "sha256")).decode()


def headers_of(secret: str, id: str, timestamp: int, body: bytes) -> dict[str, str]:
    return {ID: id, TIMESTAMP: str(timestamp), SIGNATURE: sign(secret, id, timestamp, body)}


def verify(secret: str, headers: Mapping[str, str], body: bytes, *, now: float, tolerance: float = 300) -> bool:
    """Returns whether `headers` contain a valid signature whose time is within `tolerance` seconds of `now`."""
    given = {name.lower(): value for name, value in headers.items()}
    stamp = given.get(TIMESTAMP, "")
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 15) or abs(now - int(stamp)) > tolerance:
        return False
    expected = sign(secret, given.get(ID, ""), int(stamp), body).encode()
    offered = given.get(SIGNATURE, "").split()
    return any(hmac.compare_digest(expected, signature.encode()) for signature in offered)

"""The credentials with which a provider calls a server that the caller names."""

from collections.abc import Mapping
from typing import Any, Final

from turnstream.domain.secret_headers import CREDENTIALS, MASK, REFERENCE

_HEADERS: Final = "headers."
# The members that identify the server to which a provider sends the credentials.
_SERVERS: Final = ("server_url", "url", "connector_id")


def credentials_of(definition: Mapping[str, Any]) -> dict[str, str]:
    """Returns the secrets of a provider's tool, or of a server that a provider calls, by name. The name of a header `x`
    is `headers.x`.
    """
    headers = definition.get("headers")
    found = {name: definition.get(name) for name in CREDENTIALS}
    found |= {f"{_HEADERS}{name}": value for name, value in headers.items()} if isinstance(headers, Mapping) else {}
    return {name: value for name, value in found.items() if isinstance(value, str)}


def with_credentials(definition: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """Returns the definition with its credentials replaced by `values`."""
    changed = {name: values.get(name, value) for name, value in definition.items()}
    if isinstance(headers := changed.get("headers"), Mapping):
        changed["headers"] = {name: values.get(f"{_HEADERS}{name}", value) for name, value in headers.items()}
    return changed


def server_of(definition: Mapping[str, Any]) -> str:
    """Returns the server that the provider calls with the credentials."""
    return next((value for name in _SERVERS if isinstance(value := definition.get(name), str)), "")


def needs_sealing(value: str) -> bool:
    """Returns whether the value of a header must be encrypted in rows. A mask or a reference is not a secret."""
    return value != MASK and not REFERENCE.fullmatch(value)

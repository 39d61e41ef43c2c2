"""Checks the address to which the SDK of OpenTelemetry exports, for `turnstream doctor`."""

import asyncio
import os
import re
from contextlib import suppress
from importlib.util import find_spec
from urllib.parse import urlsplit

from turnstream.domain.errors import ConfigError

# The first variable that is set is used.
_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_BARE = re.compile(r"(?:[\w.-]+|\[[\da-f:]+\]):\d+", re.IGNORECASE)
_PORTS = {"http": 80, "https": 443}
_PATIENCE = 5.0  # seconds


async def check_endpoint(ping: bool) -> str:
    """Returns a text with the verified facts. Verifies only that a connection is possible, not that spans are accepted.
    Raises ConfigError.
    """
    if find_spec("opentelemetry.sdk") is None:
        raise ConfigError(
            "TURNSTREAM_TRACES is set, and no SDK of OpenTelemetry is installed, so spans go nowhere: pip install"
            " opentelemetry-distro opentelemetry-exporter-otlp."
        )
    environment = os.environ  # noqa: TID251, the SDK does not read `.env`
    variable = next((each for each in _VARIABLES if environment.get(each)), None)
    if variable is None:
        return f"go to the SDK of the process; {_VARIABLES[-1]} is not set, and no address was checked"
    host, port = _address(variable, environment[variable])
    if not ping:
        return f"go to the SDK of the process; only --ping connects to {host}:{port} ({variable})"
    try:
        async with asyncio.timeout(_PATIENCE):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as error:
        reason = str(error) or f"no answer within {_PATIENCE:g} seconds"
        raise ConfigError(f"{variable}: {host}:{port} cannot be connected to: {reason}.") from None
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return f"go to the SDK of the process; {host}:{port} ({variable}) accepts connections"


def _address(variable: str, endpoint: str) -> tuple[str, int]:
    """Returns the host and the port of an address. An address that has only a name and a port is an address of gRPC.
    Raises ConfigError.
    """
    try:
        url = urlsplit(f"http://{endpoint}" if _BARE.fullmatch(endpoint) else endpoint)
        if url.scheme in _PORTS and url.hostname:
            return url.hostname, url.port or _PORTS[url.scheme]
    except ValueError:  # the port is not a number
        pass
    raise ConfigError(f"{variable} must be a URL, such as http://localhost:4318.")

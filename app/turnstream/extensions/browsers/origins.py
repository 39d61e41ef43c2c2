"""Admits pages of other origins: declares the headers that browsers allow in requests and responses of such pages."""

import re
from collections.abc import Sequence

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from turnstream.domain.errors import ConfigError
from turnstream.extensions.browsers.settings import BrowserSettings

_ORIGIN = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?")
# Browsers hide all response headers from these pages, except a few headers and the headers listed here.
_EXPOSED = (
    "Age",
    "ETag",
    "Location",
    "Retry-After",
    "Turnstream-Heartbeat",
    "Turnstream-Ignored",
    "Turnstream-Resume",
    "WWW-Authenticate",
    "X-Request-ID",
    "X-Resumable-Stream-ID",
    "X-Vercel-AI-UI-Message-Stream",
)


def allowed_origins(settings: BrowserSettings) -> frozenset[str]:
    """Returns the origins whose pages may call the API. Raises ConfigError for an invalid origin, such as `*`, which
    would admit all pages.
    """
    origins = frozenset((settings.cors_origins or "").replace(",", " ").split())
    if wrong := sorted(origin for origin in origins if not _ORIGIN.fullmatch(origin)):
        raise ConfigError(
            f"TURNSTREAM_CORS_ORIGINS: {wrong[0]} is no origin; name each as `https://app.example` or"
            " `http://localhost:5173`: in small letters, without a path and without a slash at its end."
        )
    if settings.cors_credentials and not origins:
        raise ConfigError("TURNSTREAM_CORS_CREDENTIALS needs the origins in TURNSTREAM_CORS_ORIGINS.")
    return origins


def cross_origin(settings: BrowserSettings) -> Sequence[Middleware]:
    """Returns the middleware that admits the pages of other origins. Without allowed origins there is no middleware,
    and browsers hide all responses from such pages.
    """
    origins = allowed_origins(settings)
    if not origins:
        return ()
    return (
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"),
            allow_headers=("*",),  # allows every requested header, because SDKs send additional headers
            allow_credentials=settings.cors_credentials,
            expose_headers=_EXPOSED,
        ),
    )

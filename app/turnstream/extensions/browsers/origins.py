"""Pages of other origins: the headers that their browsers allow in requests and answers."""

from collections.abc import Collection, Sequence

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

# A browser hides all headers of an answer that are not named here, but for a few.
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


def cross_origin(origins: Collection[str], credentials: bool) -> Sequence[Middleware]:
    """Nothing unless origins are named: browsers then hide every answer from pages of other origins."""
    if not origins:
        return ()
    return (
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"),
            allow_headers=("*",),  # those that are asked for: SDKs send headers of their own
            allow_credentials=credentials,
            expose_headers=_EXPOSED,
        ),
    )

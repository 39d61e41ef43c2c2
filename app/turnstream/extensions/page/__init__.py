"""The page at `/`, the reference client. The page calls endpoints of catalog, chat_stream and uploads."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup


def _calls() -> "Sequence[CallGroup]":
    from starlette.routing import Route

    from turnstream.api.http.call_group import CallGroup
    from turnstream.web.site import site

    files = site()
    routes = (
        Route("/", files.page),
        Route("/offline.js", files.offline_worker),
        Route("/static/{path:path}", files.file),
    )
    return [CallGroup((), routes=routes)]


EXTENSION = Extension("page", "the page at `/`, which needs `catalog`, `chat_stream` and `uploads`", calls=_calls)

"""The page at `/`, the reference client. It calls what catalog, chat_stream and uploads add."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup


def _calls() -> "Sequence[CallGroup]":
    from starlette.routing import Route

    from turnstream.api.http.call_group import CallGroup
    from turnstream.web.site import site

    return [CallGroup((), routes=(Route("/", site().page), Route("/static/{path:path}", site().file)))]


EXTENSION = Extension("page", "the page at `/`, which needs `catalog`, `chat_stream` and `uploads`", calls=_calls)

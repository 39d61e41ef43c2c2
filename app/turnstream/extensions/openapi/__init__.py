"""The OpenAPI document of all calls of the server."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.openapi.calls import CALLS

    return [CALLS]


EXTENSION = Extension("openapi", "the description of the API at /openapi.json", calls=_calls)

"""Lists the models and the tools of the server."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.catalog.calls import CALLS

    return [CALLS]


EXTENSION = Extension("catalog", "lists of models and tools", calls=_calls)

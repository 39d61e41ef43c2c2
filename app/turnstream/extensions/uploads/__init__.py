"""Uploads of files that turns refer to."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.uploads.calls import CALLS

    return [CALLS]


EXTENSION = Extension("uploads", "uploads of files that turns refer to", calls=_calls)

"""A dialect: OpenAI's API under /v1."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.openai_api.calls import CALLS

    return (CALLS,)


EXTENSION = Extension("openai_api", "OpenAI's API under /v1", calls=_calls)

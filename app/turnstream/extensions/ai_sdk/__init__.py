"""A dialect: serves turns over the protocol of Vercel's AI SDK, for `useChat`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.ai_sdk.calls import CALLS

    return (CALLS,)


EXTENSION = Extension("ai_sdk", "calls for useChat of the AI SDK", calls=_calls)

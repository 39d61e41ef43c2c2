"""A dialect: serves Anthropic's Messages API under /v1."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.anthropic_api.calls import GROUPS

    return GROUPS


EXTENSION = Extension("anthropic_api", "Anthropic's Messages API under /v1", calls=_calls)

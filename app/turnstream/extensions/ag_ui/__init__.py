"""A dialect: serves turns over the protocol AG-UI."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.extension import Extension

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.ag_ui.calls import CALLS

    return (CALLS,)


EXTENSION = Extension("ag_ui", "calls for clients of AG-UI", calls=_calls)

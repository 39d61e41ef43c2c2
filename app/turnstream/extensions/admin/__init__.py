"""Shows operators the state of all replicas and owners, and lets operators act: calls, the page `/admin`, commands."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.extension import Context, Extension, Work

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.admin.calls import CALLS

    return (CALLS,)


def _work(context: Context) -> Work:
    from turnstream.extensions.admin.endpoints import Operators
    from turnstream.extensions.admin.operations import Operations
    from turnstream.extensions.admin.overview import Overview

    overview = Overview(context.database, context.models, context.plans.default.running_turns)
    return Work(state=Operators(overview, Operations(context.database)))


EXTENSION = Extension(
    "admin",
    "the page, the calls and the commands of operators",
    calls=_calls,
    work=_work,
    commands={
        "turns": "turnstream.extensions.admin.turns",
        "why": "turnstream.extensions.admin.turns",
        "replicas": "turnstream.extensions.admin.replicas",
        "drain": "turnstream.extensions.admin.replicas",
        "audit": "turnstream.extensions.admin.audit",
        "statements": "turnstream.extensions.admin.statements",
    },
)

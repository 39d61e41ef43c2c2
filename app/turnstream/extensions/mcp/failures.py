"""Converts failures of MCP servers to refusals of requests."""

from collections.abc import Iterator
from contextlib import contextmanager

from turnstream.api.http.errors import Unavailable
from turnstream.domain.errors import RequestRefused
from turnstream.tools.tool import ToolError, ToolUnavailable


@contextmanager
def failures_as(field: str) -> Iterator[None]:
    """Converts failures of a server to refusals of a request. The refusals name `field` as the cause."""
    try:
        yield
    except ToolUnavailable as error:
        raise Unavailable(str(error)) from None
    except ToolError as refused:
        raise RequestRefused(str(refused), field=field) from None

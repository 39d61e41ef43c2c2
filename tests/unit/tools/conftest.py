from collections.abc import Callable, Iterator

import pytest
from structlog.testing import capture_logs

from tests.unit.tools.doubles import Logged
from turnstream.kit.ids import new_id
from turnstream.tools.tool import ToolContext


@pytest.fixture
def progress() -> list[str]:
    return []


@pytest.fixture
def context(progress: list[str]) -> ToolContext:
    show: Callable[[str], None] = progress.append
    return ToolContext("ada", new_id(), new_id(), "toolu_1", "key-1", show)


@pytest.fixture(autouse=True)
def logged() -> Iterator[Logged]:
    """Captures the log lines. The traceback that a terminal gets would take longer than most tests."""
    with capture_logs() as lines:
        yield lines

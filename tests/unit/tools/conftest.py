from collections.abc import Callable

import pytest

from app.domain.ids import new_id
from app.tools.tool import ToolContext


@pytest.fixture
def progress() -> list[str]:
    return []


@pytest.fixture
def context(progress: list[str]) -> ToolContext:
    show: Callable[[str], None] = progress.append
    return ToolContext("ada", new_id(), new_id(), "toolu_1", "key-1", show)

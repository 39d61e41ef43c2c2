"""A request in a dialect for another answer while the previous answer is still running."""

from typing import Any, get_args
from unittest.mock import AsyncMock

import pytest

from tests.support.turns import turn_of
from turnstream.domain.chats import OnBusy
from turnstream.libraries.dialects import chats
from turnstream.libraries.dialects.schemas import UiOptions

# For each `on_busy`: whether the server first cancels the answer that is still running.
CANCELS: dict[OnBusy, bool] = {"reject": False, "enqueue": False, "interrupt": True, "steer": False, "branch": False}


@pytest.mark.parametrize("on_busy", get_args(OnBusy))
async def test_the_answer_before_is_cancelled_if_the_request_says_so(
    monkeypatch: pytest.MonkeyPatch, on_busy: OnBusy
) -> None:
    calls = {name: AsyncMock() for name in ("cancel_turn", "wait_for_end", "generate_again")}
    for name, call in calls.items():
        monkeypatch.setattr(chats, name, call)
    services: Any = None
    await chats.replace_answer(services, "ann", turn_of(), UiOptions(), on_busy, None)
    assert [call.await_count for call in calls.values()] == [CANCELS[on_busy], CANCELS[on_busy], 1]

"""Answers to the prompt for a summary."""

import json
from collections.abc import AsyncGenerator, Sequence
from uuid import UUID

import pytest

from turnstream.domain.errors import TransientError
from turnstream.domain.kinds import SUMMARY
from turnstream.llm.conversation.summaries import as_summary
from turnstream.llm.provider import (
    BlockClosed,
    BlockData,
    BlockOpened,
    BlockText,
    MessageDelta,
    MessageEnded,
    MessageStarted,
    Part,
)
from turnstream.scripted import message_of, text, thinking, tool_use

THROUGH = UUID(int=7)


async def kept(*batches: Sequence[Part]) -> list[Part]:
    async def stream() -> AsyncGenerator[Sequence[Part], None]:
        for batch in batches:
            yield batch

    return [part async for batch in as_summary(stream(), THROUGH) for part in batch]


async def test_the_words_become_one_summary_and_the_rest_is_left_out() -> None:
    parts = await kept(*message_of(thinking("Hm"), text("In ", "short."), tool_use("look", {}, "a"), text("And more.")))
    started, opened, *words, delta, closed, ended = parts
    assert isinstance(opened, BlockOpened)
    assert opened.type == SUMMARY
    assert json.loads(opened.data or "") == {"type": SUMMARY, "through": str(THROUGH)}
    assert words == [BlockText(opened.key, text) for text in ("In ", "short.", "\n\n", "And more.")]
    kinds = [type(part) for part in (started, delta, closed, ended)]
    assert kinds == [MessageStarted, MessageDelta, BlockClosed, MessageEnded]


async def test_words_may_come_with_the_block() -> None:
    batch: list[Part] = [
        BlockOpened(0, "text", None, "All."),
        BlockData(0, "citations", []),
        BlockClosed(0),
        MessageEnded(),
    ]
    parts = await kept(batch)
    assert [type(part) for part in parts] == [BlockOpened, BlockClosed, MessageEnded]


@pytest.mark.parametrize("stop_reason", ["max_tokens", "refusal", "model_context_window_exceeded"])
async def test_an_answer_that_was_cut_off_is_no_summary(stop_reason: str) -> None:
    with pytest.raises(TransientError, match="no_summary"):
        await kept(*message_of(text("In sh"), stop_reason=stop_reason))


async def test_a_summary_without_words_is_none() -> None:
    with pytest.raises(TransientError, match="empty_summary"):
        await kept(*message_of(text(" ")))

"""Converts items that have no ids of this server to items of a history."""

from collections.abc import Iterator, Sequence

from turnstream.extensions.openai_api.inputs import blocks_of, result_text, text_of
from turnstream.extensions.openai_api.schemas import FunctionOutputItem, InputItem, MessageItem, OutputItem
from turnstream.libraries.dialects.histories import PastCall, PastItem, PastMessage, PastResult, PastText

PLACE = "input"


def past_items(items: Sequence[InputItem]) -> Iterator[PastItem]:
    """Yields the items of a history, without instructions. Raises RequestRefused."""
    for item in items:
        match item:
            case MessageItem(role="user", content=content):
                yield PastMessage(blocks_of(content, PLACE))
            case MessageItem(role="assistant", content=content):
                yield PastText(text_of(content, PLACE))
            case OutputItem(type="function_call"):
                yield PastCall(item.call_id, item.name, item.arguments or "{}")
            case FunctionOutputItem():
                yield PastResult(item.call_id, result_text(item))
            case _:
                pass

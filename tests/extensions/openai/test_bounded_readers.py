"""Providers that send endless responses to the clients of OpenAI's APIs."""

from collections.abc import Callable

import pytest

from tests.support.endless import ANSWERS, read_answer, read_count
from turnstream.extensions.openai.provider import OpenAIChatProvider, OpenAIResponsesProvider
from turnstream.libraries.providers.transport.http import Adapter


@pytest.mark.parametrize("make", [OpenAIChatProvider, OpenAIResponsesProvider])
@pytest.mark.parametrize("answer", ANSWERS)
async def test_an_answer_is_read_up_to_its_bound(make: Callable[..., Adapter], answer: str) -> None:
    await read_answer(make, answer)


async def test_a_count_is_read_up_to_its_bound() -> None:
    await read_count(OpenAIResponsesProvider)

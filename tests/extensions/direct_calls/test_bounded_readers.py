"""Direct calls stop reading an endless response at the limit that the SDKs' calls have."""

import pytest

from tests.integration.adapters import SDK_APIS
from tests.support.endless import ANSWERS, read_answer


@pytest.mark.parametrize("api", SDK_APIS)
@pytest.mark.parametrize("answer", ANSWERS)
async def test_an_answer_without_an_end_is_read_up_to_its_bound(api: str, answer: str) -> None:
    await read_answer(SDK_APIS[api].make, answer)

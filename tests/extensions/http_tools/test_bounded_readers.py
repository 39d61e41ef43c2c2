"""An HTTP tool stops reading an endless answer."""

from uuid import uuid4

import pytest

from tests.support.endless import ON_THE_WAY, Endless, check_documented, sending
from turnstream.domain.turns import HttpCall, ToolSpec
from turnstream.extensions.http_tools.tool import HttpTools
from turnstream.libraries.outgoing.addresses import Allowed
from turnstream.tools.policy import Policy
from turnstream.tools.tool import ToolContext, ToolError

BOUND = 1_000_000  # bytes


async def test_an_answer_is_read_up_to_its_bound() -> None:
    check_documented("HTTP tool", BOUND)
    context = ToolContext("ada", uuid4(), uuid4(), "toolu_1", "key-1", lambda words: None)
    async with sending(Endless()) as endless, HttpTools(Allowed.of(["127.0.0.1"])) as tools:
        spec = ToolSpec("weather", "…", '{"type":"object"}', http=HttpCall(endless.url))
        with pytest.raises(ToolError, match="was too long to be read"):
            await tools.operator_tool(spec, Policy())(context, "{}")
    assert endless.sent < BOUND + ON_THE_WAY

"""What a provider that bills cache reads and writes by real comparison of prefixes would bill for a turn."""

import json
from collections.abc import Iterator
from typing import Any

from app.domain.turns import Limits
from app.llm.anthropic_render import render
from app.llm.provider import ModelRequest
from app.llm.scripted import ScriptedProvider, message_of, text, thinking, tool_use
from app.tools.tool import tool
from tests.integration.harness import Harness

ROUNDS = 10
LOOKED_BACK = 20  # content blocks before a mark, in which the provider looks for what it has


@tool(read_only=True)
async def look(place: int) -> str:
    """Look somewhere."""
    return f"a sight of place {place}. " * 10


class Bills:
    """Remembers every marked prefix, and counts characters that were read from it, and those that were not."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self.read = 0
        self.paid = 0

    def charge(self, request: ModelRequest) -> None:
        prefixes, marks = ["", *_prefixes(request)], list(_marks(request))
        read = 0
        for mark in marks:
            for place in range(mark + 1, max(mark - LOOKED_BACK, 0), -1):
                if prefixes[place] in self._known:
                    read = max(read, len(prefixes[place]))
                    break
        self.read += read
        self.paid += len(prefixes[-1]) - read
        self._known |= {prefixes[mark + 1] for mark in marks}


def _parts(request: ModelRequest) -> Iterator[dict[str, Any]]:
    body = json.loads(render(request))
    yield from body.get("tools", ())
    yield from body.get("system", ())
    for message in body["messages"]:
        yield from message["content"]


def _marks(request: ModelRequest) -> Iterator[int]:
    return (place for place, part in enumerate(_parts(request)) if "cache_control" in part)


def _prefixes(request: ModelRequest) -> Iterator[str]:
    said = ""
    for part in _parts(request):
        said += json.dumps({name: value for name, value in part.items() if name != "cache_control"})
        yield said


async def test_after_the_first_call_of_a_ten_round_turn_19_in_20_characters_are_read_from_the_cache(
    harness: Harness,
) -> None:
    replies = [
        message_of(
            thinking("Hm. " * 5), text(f"Place {n}."), *(tool_use("look", {"place": i}, f"c{n}{i}") for i in (1, 2))
        )
        for n in range(ROUNDS)
    ]
    provider = ScriptedProvider([*replies, message_of(text("That is all."))])
    system = "You look at places, and say what you see. " * 400  # as long as such prompts are
    async with harness.replica(provider, [look]) as replica:
        limits = Limits(max_rounds=ROUNDS)
        asked = await harness.ask("Look at everything.", tools=[look], limits=limits, system=system)
        turn = await harness.finish(replica, asked)
    assert (turn.status, len(provider.requests)) == ("complete", ROUNDS + 1)
    bills = Bills()
    bills.charge(provider.requests[0])
    assert bills.read == 0
    bills.paid = 0
    for request in provider.requests[1:]:
        bills.charge(request)
    share = bills.read / (bills.read + bills.paid)
    print(f"read from the cache after the first call: {share:.1%}")
    assert share >= 0.95

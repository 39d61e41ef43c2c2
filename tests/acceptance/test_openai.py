"""OpenAI's SDK against killed servers."""

from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.acceptance.conftest import StartServer

pytestmark = pytest.mark.extensions("openai_api")


def client_of(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def exploded(events: list[Any]) -> list[tuple[int, str]]:
    """Returns each event with its number. Each character of a delta has a number of its own."""
    found: list[tuple[int, str]] = []
    for event in events:
        delta = getattr(event, "delta", None)
        number = event.sequence_number
        if delta is None:
            found.append((number, event.type))
        else:
            found += [(number - len(delta) + 1 + place, character) for place, character in enumerate(delta)]
    return found


async def test_a_response_resumes_on_another_replica_after_the_one_that_wrote_it_was_killed(
    server: StartServer,
) -> None:
    first = await server(TURNSTREAM_DEMO_DELAY="0.05", TURNSTREAM_JOURNAL_INTERVAL="0.05")
    second = await server(TURNSTREAM_DEMO_DELAY="0.001", TURNSTREAM_JOURNAL_INTERVAL="0.05")
    async with client_of(first.url) as here, client_of(second.url) as there:
        made = await here.responses.create(model="demo", input="Tell me about ships.", background=True)
        seen: list[Any] = []
        async for event in await here.responses.retrieve(made.id, stream=True):
            seen.append(event)
            if sum(each.type == "response.output_text.delta" for each in seen) == 5:
                break
        await first.kill()
        last = seen[-1].sequence_number
        rest = [event async for event in await there.responses.retrieve(made.id, stream=True, starting_after=last)]
        whole = [event async for event in await there.responses.retrieve(made.id, stream=True)]
        async with there.responses.stream(response_id=made.id) as stream:
            final = await stream.get_final_response()
        again = [event async for event in await there.responses.retrieve(made.id, stream=True, starting_after=last)]
    assert whole[-1].type == "response.completed"
    assert final.output_text
    assert exploded(again) == exploded(rest), "the same while it ran and after"
    if rest[0].type != "response.in_progress":  # otherwise the server voided sent text that the journal lacked
        assert exploded(seen) + exploded(rest) == exploded(whole)
    assert rest[-1].sequence_number == whole[-1].sequence_number


async def test_a_response_is_whole_after_many_cuts(server: StartServer) -> None:
    replicas = [await server(TURNSTREAM_DEMO_DELAY="0.01", TURNSTREAM_JOURNAL_INTERVAL="0.02") for _ in range(2)]
    async with client_of(replicas[0].url) as here, client_of(replicas[1].url) as there:
        made = await here.responses.create(model="demo", input="Tell me about ships.", background=True)
        seen: dict[int, str] = {}
        for number in range(13):
            client = (here, there)[number % 2]
            after = {"starting_after": max(seen)} if seen else {}
            async with await client.responses.retrieve(made.id, stream=True, extra_query=after) as events:
                left = 1 + number if number < 12 else None  # the last connection reads to the end
                async for event in events:
                    seen |= exploded([event])
                    left = left and left - 1
                    if left == 0:
                        break
        whole = [event async for event in await there.responses.retrieve(made.id, stream=True)]
        final = await there.responses.retrieve(made.id)
    assert seen == dict(exploded(whole))
    assert final.output_text == "".join(event.delta for event in whole if event.type == "response.output_text.delta")

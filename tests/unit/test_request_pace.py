"""Requests that arrive at once start in portions, and streams get their turn between the portions."""

import asyncio
from collections import Counter

from turnstream.api.http.connection import RequestPace


async def test_a_burst_of_requests_begins_in_its_order_over_several_iterations_of_the_loop() -> None:
    pace, loop = RequestPace(), asyncio.get_running_loop()
    iteration, begun = 0, list[tuple[int, int]]()

    def count() -> None:
        nonlocal iteration
        iteration += 1
        counting[0] = loop.call_soon(count)

    async def request(number: int) -> None:
        await pace.begin()
        begun.append((iteration, number))

    counting = [loop.call_soon(count)]
    requests = [asyncio.create_task(request(number)) for number in range(100)]
    await asyncio.sleep(0)
    requests[50].cancel()  # the client of this request has disconnected
    await asyncio.wait(requests)
    counting[0].cancel()
    assert [number for _, number in begun] == [number for number in range(100) if number != 50]
    assert set(Counter(iteration for iteration, _ in begun).values()) <= {19, 20}


async def test_a_request_that_comes_alone_does_not_wait() -> None:
    pace = RequestPace()
    for _ in range(50):
        beginning = asyncio.create_task(pace.begin())
        await asyncio.sleep(0)
        assert beginning.done()
        await asyncio.sleep(0)

"""A chaos plan is repeatable, and each fault does what its name says."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import httpx2
import pytest

from turnstream_lab.chaos import FAULTS, ChaosInterceptor, ChaosPlan, Fault

BODY = b'data: {"n": 1}\n\n' * 200


class Answers(httpx2.AsyncByteStream):
    """A response body that comes in chunks."""

    def __init__(self, size: int = 1000) -> None:
        self.size = size
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for place in range(0, len(BODY), self.size):
            yield BODY[place : place + self.size]

    async def aclose(self) -> None:
        self.closed = True


async def ask(interceptor: ChaosInterceptor, body: httpx2.AsyncByteStream) -> httpx2.Response:
    async def send(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, stream=body, request=request)

    return await interceptor(httpx2.Request("POST", "http://model/v1/messages", content=b"{}"), send)


def interceptor_of(fault: Fault, seed: int = 1, *, reach: int = 500) -> ChaosInterceptor:
    return ChaosInterceptor(ChaosPlan(seed, 1.0, [fault], longest_wait=0.001, reach=reach))


async def read(response: httpx2.Response) -> list[bytes]:
    async with aclosing(response):
        return [chunk async for chunk in response.aiter_raw()]


def faults_of(plan: ChaosPlan, calls: int) -> Sequence[Fault | None]:
    return [plan.fault_of(number)[0] for number in range(1, calls + 1)]


def test_a_seed_gives_the_same_faults_again_and_another_seed_others() -> None:
    assert faults_of(ChaosPlan(1, 0.5), 100) == faults_of(ChaosPlan(1, 0.5), 100)
    assert faults_of(ChaosPlan(1, 0.5), 100) != faults_of(ChaosPlan(2, 0.5), 100)


def test_a_plan_disturbs_its_share_of_calls_with_every_fault() -> None:
    faults = faults_of(ChaosPlan(3, 0.25), 2000)
    assert 400 < sum(fault is not None for fault in faults) < 600
    assert {*faults} == {None, *FAULTS}
    assert {*faults_of(ChaosPlan(3, 0.0), 100)} == {None}


async def test_a_call_that_nothing_befalls_is_as_it_was() -> None:
    interceptor, body = ChaosInterceptor(ChaosPlan(1, 0.0)), Answers()
    assert b"".join(await read(await ask(interceptor, body))) == BODY
    assert not interceptor.happened
    assert body.closed


@pytest.mark.parametrize(
    ("fault", "statuses"),
    [("rate_limit", {429}), ("overloaded", {529}), ("server_error", {500, 502, 503, 504})],
)
async def test_refusals_have_their_status_and_a_body_that_says_why(fault: Fault, statuses: set[int]) -> None:
    interceptor = interceptor_of(fault)
    answers = [await ask(interceptor, Answers()) for _ in range(20)]
    assert {answer.status_code for answer in answers} == statuses
    assert {json.loads(await answer.aread())["type"] for answer in answers} == {"error"}
    assert all(("retry-after" in answer.headers) == (fault == "rate_limit") for answer in answers)
    assert interceptor.happened == {fault: 20}


async def test_a_connection_may_be_refused() -> None:
    with pytest.raises(httpx2.ConnectError):
        await ask(interceptor_of("refused"), Answers())


async def test_a_delayed_answer_is_whole() -> None:
    assert b"".join(await read(await ask(interceptor_of("delay"), Answers()))) == BODY


async def test_a_call_may_have_no_answer_at_all() -> None:
    waiting = asyncio.ensure_future(ask(interceptor_of("no_answer"), Answers()))
    done, _ = await asyncio.wait([waiting], timeout=0.01)
    assert not done
    waiting.cancel()


async def test_a_reset_comes_in_the_middle_of_the_body() -> None:
    chunks = (await ask(interceptor_of("reset"), Answers())).aiter_raw()
    got = await anext(chunks)
    with pytest.raises(httpx2.ReadError):
        await anext(chunks)
    assert 0 < len(got) < len(BODY)
    assert BODY.startswith(got)


async def test_a_truncated_body_ends_as_if_it_were_whole() -> None:
    got = [b"".join(await read(await ask(interceptor_of("truncation", seed), Answers()))) for seed in range(20)]
    assert all(BODY.startswith(body) for body in got)
    assert any(body != BODY and not body.endswith(b"\n\n") for body in got)


async def test_garbage_is_inserted_into_an_otherwise_complete_body() -> None:
    for fault in ("garbage_bytes", "garbage_event"):
        body = b"".join(await read(await ask(interceptor_of(fault, 4), Answers())))
        assert body != BODY
        assert body.endswith(BODY[-500:])


async def test_a_stuttering_body_comes_by_the_byte() -> None:
    chunks = await read(await ask(interceptor_of("stutter"), Answers()))
    assert b"".join(chunks) == BODY
    assert len(chunks) > 400


async def test_a_silent_body_never_ends() -> None:
    response = await ask(interceptor_of("silence"), Answers())
    reading = asyncio.ensure_future(read(response))
    done, _ = await asyncio.wait([reading], timeout=0.01)
    assert not done
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


@pytest.mark.parametrize("fault", ["reset", "truncation", "garbage_bytes", "garbage_event", "stutter", "silence"])
async def test_nothing_befalls_a_body_that_ends_before(fault: Fault) -> None:
    interceptor = interceptor_of(fault, reach=10**9)
    assert b"".join(await read(await ask(interceptor, Answers()))) == BODY
    assert not interceptor.happened

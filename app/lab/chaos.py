"""Faults by a seeded plan, between an adapter and the network: what a provider does on its worst days, at will.

They are made where a call is bytes, because half of them cannot be said any higher up: an event that is cut in the
middle, bytes that are no text, a connection that stays open and silent. So adapter and wire parser are tried too.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal, get_args

import httpx2
import msgspec
import structlog

from app.llm.transport.interceptor import Send, filter_body

log = structlog.get_logger(__name__)

Fault = Literal[
    "delay",
    "rate_limit",
    "overloaded",
    "server_error",
    "refused",
    "no_answer",
    "reset",
    "truncation",
    "garbage_bytes",
    "garbage_event",
    "stutter",
    "silence",
]
FAULTS: Final[Sequence[Fault]] = get_args(Fault)

_REFUSALS: Final[Mapping[Fault, tuple[Sequence[int], str]]] = {
    "rate_limit": ((429,), "rate_limit_error"),
    "overloaded": ((529,), "overloaded_error"),
    "server_error": ((500, 502, 503, 504), "api_error"),
}
_EVENTS: Final = (
    b'data: {"type":"brand_new","deep":[1,null]}\n\n',
    b'data: {"type":"content_block_delta","index":99,"delta":{"type":"text_delta","text":"?"}}\n\n',
    b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n',
    b'data: {"type":"content_block_stop","index":0}\n\n',
    b'data: {"type":"error","error":{"type":"overloaded_error","message":"Chaos."}}\n\n',
    b'data: {"type":"message_stop"}\n\n',
    b'data: {"choices":[{"index":0,"delta":null}]}\n\n',
    b'data: {"error":{"type":"server_error","message":"Chaos."}}\n\n',
    b"data: [DONE]\n\n",
    b"data: {broken\n\n",
    b"data: null\n\n",
    b"<html><h1>502 Bad Gateway</h1></html>\n\n",
)


@dataclass(frozen=True, slots=True)
class ChaosPlan:
    """The n-th call meets the same fault whenever the seed is the same. `share` of all calls are disturbed. Waits, and
    those that are asked for, last up to `longest_wait` seconds; what befalls a body does so `reach` bytes into it, more
    or less.
    """

    seed: int
    share: float
    faults: Sequence[Fault] = FAULTS
    longest_wait: float = 3.0
    reach: int = 1000

    def of(self, number: int) -> tuple[Fault | None, Random]:
        """What befalls this call, and the chance that decides the rest."""
        random = Random(f"{self.seed}:{number}")  # noqa: S311, chance is all that is wanted
        return (random.choice(self.faults) if random.random() < self.share else None), random


class ChaosInterceptor:
    """`happened` counts the faults. What was planned for a body does not happen to one that ends before."""

    def __init__(self, plan: ChaosPlan) -> None:
        self.happened: Counter[Fault] = Counter()
        self._plan = plan
        self._calls = 0

    async def __call__(self, request: httpx2.Request, send: Send) -> httpx2.Response:
        self._calls += 1
        fault, random = self._plan.of(self._calls)
        match fault:
            case None:
                pass
            case "rate_limit" | "overloaded" | "server_error":
                self._happens(fault)
                return self._refusal(fault, request, random)
            case "refused":
                self._happens(fault)
                raise httpx2.ConnectError("chaos: connection refused")
            case "no_answer":
                self._happens(fault)
                await asyncio.Event().wait()
            case "delay":
                self._happens(fault)
                await self._wait(random)
            case _:
                return filter_body(await send(request), lambda body: self._disturbed(body, fault, random))
        return await send(request)

    def _happens(self, fault: Fault) -> None:
        self.happened[fault] += 1
        log.info("chaos.fault", fault=fault)

    async def _wait(self, random: Random) -> None:
        await asyncio.sleep(random.uniform(0, self._plan.longest_wait))

    def _refusal(self, fault: Fault, request: httpx2.Request, random: Random) -> httpx2.Response:
        statuses, name = _REFUSALS[fault]
        body = msgspec.json.encode({"type": "error", "error": {"type": name, "message": "Chaos."}})
        headers = {"content-type": "application/json"}
        if fault == "rate_limit":
            headers["retry-after"] = f"{random.uniform(0, self._plan.longest_wait):.3f}"
        return httpx2.Response(random.choice(statuses), headers=headers, content=_unread(body), request=request)

    async def _disturbed(self, body: AsyncIterator[bytes], fault: Fault, random: Random) -> AsyncIterator[bytes]:
        left = int(random.expovariate(1 / self._plan.reach))
        async for chunk in body:
            if left >= len(chunk):
                left -= len(chunk)
                yield chunk
                continue
            self._happens(fault)
            yield chunk[:left]
            match fault:
                case "reset":
                    raise httpx2.ReadError("chaos: connection reset")
                case "truncation":
                    return
                case "silence":
                    await asyncio.Event().wait()
                case "stutter":
                    for byte in chunk[left:]:
                        yield bytes([byte])
                    await self._wait(random)
                case _:
                    yield _spoilt(chunk[left:], fault, random)
            break
        async for chunk in body:
            yield chunk


def _spoilt(chunk: bytes, fault: Fault, random: Random) -> bytes:
    """Bytes are put anywhere, or in the place of others; an event is put between two where there is a place for it."""
    if fault == "garbage_bytes":
        return random.randbytes(random.randrange(1, 40)) + chunk[random.choice([0, random.randrange(40)]) :]
    before, end, after = chunk.partition(b"\n\n")
    return before + end + random.choice(_EVENTS) + after


async def _unread(body: bytes) -> AsyncIterator[bytes]:
    """As it would come from the network: whoever listens hears it."""
    yield body

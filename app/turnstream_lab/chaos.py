"""Injects provider faults between an adapter and the network, by a seeded plan.

Faults are injected into the bytes of a call, because half of the faults cannot occur above that layer: a truncated
event, invalid UTF-8, a connection that stays open and silent. This also tests adapters and parsers.
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

from turnstream.llm.interceptor import Send
from turnstream_lab.filtering import filter_body

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
    """Decides which calls have which fault. With the same seed, the n-th call always has the same fault. `share`, from
    0 to 1, is the part of all calls that have a fault. A delay lasts up to `longest_wait` seconds, and `retry-after`
    names at most this time. A fault in a body occurs after `reach` bytes on average.
    """

    seed: int
    share: float
    faults: Sequence[Fault] = FAULTS
    longest_wait: float = 3.0
    reach: int = 1000

    def fault_of(self, number: int) -> tuple[Fault | None, Random]:
        """Returns the fault of the call `number`, or None, and a generator of random numbers for the details of the
        fault.
        """
        random = Random(f"{self.seed}:{number}")  # noqa: S311, no secret depends on it
        return (random.choice(self.faults) if random.random() < self.share else None), random


class ChaosInterceptor:
    """An interceptor that injects the faults of a plan. `happened` counts the faults that occurred; a body may end
    before its fault occurs.
    """

    def __init__(self, plan: ChaosPlan) -> None:
        self.happened: Counter[Fault] = Counter()
        self._plan = plan
        self._calls = 0

    async def __call__(self, request: httpx2.Request, send: Send) -> httpx2.Response:
        self._calls += 1
        fault, random = self._plan.fault_of(self._calls)
        match fault:
            case None:
                pass
            case "rate_limit" | "overloaded" | "server_error":
                self._count(fault)
                statuses, name = _REFUSALS[fault]
                body = msgspec.json.encode({"type": "error", "error": {"type": name, "message": "Chaos."}})
                headers = {"content-type": "application/json"}
                if fault == "rate_limit":
                    headers["retry-after"] = f"{random.uniform(0, self._plan.longest_wait):.3f}"
                status = random.choice(statuses)
                return httpx2.Response(status, headers=headers, content=_unread(body), request=request)
            case "refused":
                self._count(fault)
                raise httpx2.ConnectError("chaos: connection refused")
            case "no_answer":
                self._count(fault)
                await asyncio.Event().wait()
            case "delay":
                self._count(fault)
                await self._wait(random)
            case _:
                return filter_body(await send(request), lambda body: self._disturbed(body, fault, random))
        return await send(request)

    def _count(self, fault: Fault) -> None:
        self.happened[fault] += 1
        log.info("chaos.fault", fault=fault)

    async def _wait(self, random: Random) -> None:
        await asyncio.sleep(random.uniform(0, self._plan.longest_wait))

    async def _disturbed(self, body: AsyncIterator[bytes], fault: Fault, random: Random) -> AsyncIterator[bytes]:
        left = int(random.expovariate(1 / self._plan.reach))
        async for chunk in body:
            if left >= len(chunk):
                left -= len(chunk)
                yield chunk
                continue
            self._count(fault)
            yield chunk[:left]
            rest = chunk[left:]
            match fault:
                case "reset":
                    raise httpx2.ReadError("chaos: connection reset")
                case "truncation":
                    return
                case "silence":
                    await asyncio.Event().wait()
                case "stutter":
                    for byte in rest:
                        yield bytes([byte])
                    await self._wait(random)
                case "garbage_bytes":  # garbage before the rest, or in place of its beginning
                    yield random.randbytes(random.randrange(1, 40)) + rest[random.choice([0, random.randrange(40)]) :]
                case _:  # an event between two events, if the chunk has a boundary
                    before, end, after = rest.partition(b"\n\n")
                    yield before + end + random.choice(_EVENTS) + after
            break
        async for chunk in body:
            yield chunk


async def _unread(body: bytes) -> AsyncIterator[bytes]:
    """Streams the body as the network would, because interceptors above this one expect a stream."""
    yield body

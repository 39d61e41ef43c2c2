"""A provider in Anthropic's form. It enforces its limits with a token bucket per key, and reports them in headers."""

import json
from collections import Counter
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from tests.support.canned import Answer, Asked, CannedServer
from turnstream.extensions.rate_limits.amounts import Amounts, RateLimits

MODEL = "claude-haiku-5-5"


@dataclass
class Bucket:
    """The token bucket of a key. `left` is the present content of the bucket, and `gained` is the sum of all that was
    ever added.
    """

    left: Amounts
    at: float
    gained: Amounts


@dataclass
class LimitedProvider(CannedServer):
    """A provider that enforces `limits`. Each bucket begins with `start`. A reply uses `output` tokens. Keys in
    `refused` are unknown. If `used_up` is set, another program uses all requests just before the next call. `accepted`
    counts calls by key. After each call, `history` gets two values: all requests that the bucket has ever had, and the
    requests left.
    """

    limits: RateLimits = field(default_factory=RateLimits)
    start: Amounts = field(default_factory=Amounts)
    input: int = 40
    output: int = 10
    refused: set[str] = field(default_factory=set)
    used_up: bool = False
    accepted: Counter[str] = field(default_factory=Counter)
    turned_away: Counter[str] = field(default_factory=Counter)
    order: list[str] = field(default_factory=list)
    history: list[tuple[float, float]] = field(default_factory=list)
    buckets: dict[str, Bucket] = field(default_factory=dict)

    def used(self, begin: float, end: float) -> float:
        """Returns which part of the allowed requests was used, between two points in the sequence of accepted calls."""
        (before, rest_before), (after, rest_after) = (
            self.history[int(part * (len(self.history) - 1))] for part in (begin, end)
        )
        return 1 - (rest_after - rest_before) / (after - before)

    def answer_to(self, asked: Asked) -> Answer:
        key = key_of(asked)
        if key in self.refused:
            error = {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}
            return Answer(json.dumps(error).encode(), 401, {"content-type": "application/json"})
        bucket, now = self.buckets.setdefault(key, Bucket(self.start, monotonic(), self.start)), monotonic()
        gain = Amounts(*(rate * (now - bucket.at) for rate in self.limits.rate))
        bucket.gained = bucket.gained.plus(gain)
        bucket.left, bucket.at = bucket.left.plus(gain).least(self.limits.capacity), now
        if self.used_up:
            self.used_up, bucket.left = False, bucket.left._replace(requests=0)
        used = Amounts(1, self.input, self.output, self.input + self.output)
        if not bucket.left.covers(used):
            self.turned_away[key] += 1
            error = {"type": "error", "error": {"type": "rate_limit_error", "message": "This would exceed your limit."}}
            return Answer(json.dumps(error).encode(), 429, {"content-type": "application/json", "retry-after": "1"})
        bucket.left = bucket.left.plus(used, -1)
        self.accepted[key] += 1
        self.order.append(asked.body.decode())
        self.history.append((bucket.gained.requests, bucket.left.requests))
        headers = {"content-type": "text/event-stream", **self._head(bucket)}
        return Answer(reply(self.input, self.output), headers=headers)

    def _head(self, bucket: Bucket) -> dict[str, str]:
        names = ("requests", "input-tokens", "output-tokens", "tokens")
        figures = zip(names, self.limits.capacity, bucket.left, strict=True)
        found: dict[str, str] = {}
        for name, most, left in figures:
            if most < float("inf"):
                found[f"anthropic-ratelimit-{name}-limit"] = str(int(most))
                found[f"anthropic-ratelimit-{name}-remaining"] = str(int(left))
        return found


def key_of(asked: Asked) -> str:
    return asked.headers.get("x-api-key") or asked.headers["authorization"].removeprefix("Bearer ")


def reply(input: int, output: int) -> bytes:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "content": []}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "usage": {"input_tokens": input, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": output}},
        {"type": "message_stop"},
    ]
    return b"".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events)

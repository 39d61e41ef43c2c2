"""Checks by other servers: a server of the operator, whose requests are signed like webhooks, or the moderation API of
OpenAI.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
from pydantic import BaseModel, ConfigDict, Field

from turnstream.kit.clock import CLOCK
from turnstream.kit.ids import new_id
from turnstream.libraries.guards.guard import MASK, EndTurn, Mask, Pass, Passage, Replace, Ruling, TakeBack, TextSpan
from turnstream.libraries.outgoing.signature import headers_of
from turnstream.storage.rows import to_json
from turnstream.tracing import TRACING

_MOST_ANSWER = 1_000_000  # bytes
_MODERATION = "https://api.openai.com/v1/moderations"

Action = Literal["mask", "replace", "retract", "end"]


class CheckAnswer(Exception):
    """Another server has sent an invalid answer."""


class CheckSession:
    """The HTTP session of all checks, open while `run` runs."""

    def __init__(self) -> None:
        self._http: asyncio.Future[aiohttp.ClientSession] | None = None

    async def run(self) -> None:
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), trust_env=True) as http:
            self._opened().set_result(http)
            try:
                await asyncio.Event().wait()
            finally:
                self._http = None

    def _opened(self) -> "asyncio.Future[aiohttp.ClientSession]":
        if self._http is None:
            self._http = asyncio.get_running_loop().create_future()
        return self._http

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """Sends a POST, and returns the body of the answer. Raises CheckAnswer if the status is not 200 or the body is
        too long.
        """
        http = await asyncio.shield(self._opened())
        sent = {"content-type": "application/json", "user-agent": "turnstream", **headers, **TRACING.outgoing()}
        async with http.post(url, data=body, headers=sent, allow_redirects=False) as response:
            if response.status != 200:
                raise CheckAnswer(f"the check answered {response.status}")
            content = await response.content.read(_MOST_ANSWER + 1)
            while len(content) <= _MOST_ANSWER and (more := await response.content.read(_MOST_ANSWER)):
                content += more
        if len(content) > _MOST_ANSWER:
            raise CheckAnswer("the answer of the check is too long")
        return content


class _SpanIn(BaseModel):
    start: int = Field(ge=0)
    end: int = Field(ge=0)
    text: str = MASK


class RulingIn(BaseModel):
    """The answer that the server of a check sends."""

    model_config = ConfigDict(extra="ignore")

    verdict: Literal["pass", "mask", "replace", "retract", "end"]
    spans: list[_SpanIn] = Field(default_factory=list)
    text: str = ""
    reason: str = ""
    retract: bool = False
    undecided: int | None = Field(None, ge=0)

    def ruling(self) -> Ruling:
        match self.verdict:
            case "pass":
                return Pass(self.undecided)
            case "mask":
                return Mask([TextSpan(span.start, span.end, span.text) for span in self.spans], self.undecided)
            case "replace":
                return Replace(self.text)
            case "retract":
                return TakeBack(self.text)
            case "end":
                return EndTurn(self.reason, self.retract)


@dataclass(frozen=True, slots=True)
class HttpCheck:
    """Sends the passage to `url` with a POST, which is signed with `secret`, if any."""

    connection: CheckSession
    guard: str
    url: str
    secret: str | None
    headers: Mapping[str, str] = field(default_factory=dict)

    async def __call__(self, passage: Passage) -> Ruling:
        turn = passage.turn
        data = {
            "guardrail": self.guard,
            "place": passage.place,
            "text": passage.text,
            "start": passage.start,
            "final": passage.final,
            "owner": passage.owner,
            "chat": turn and str(turn.chat_id),
            "turn": turn and str(turn.id),
            "tool": passage.tool,
        }
        body = to_json({"type": "guardrail.check", "timestamp": CLOCK.now().isoformat(), "data": data}).encode()
        signed = {} if self.secret is None else headers_of(self.secret, f"check-{new_id()}", int(CLOCK.seconds()), body)
        answer = await self.connection.post(self.url, body, {**self.headers, **signed})
        return RulingIn.model_validate_json(answer).ruling()


class _Moderated(BaseModel):
    flagged: bool
    categories: dict[str, bool] = Field(default_factory=dict)
    category_scores: dict[str, float] = Field(default_factory=dict)


class _Moderation(BaseModel):
    results: list[_Moderated] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class ModerationCheck:
    """Checks passages with the moderation API of OpenAI, or of a compatible server. A passage fails if a score reaches
    `threshold`, or, without a `threshold`, if the server flags the passage. `categories` limits the check to some
    categories.
    """

    connection: CheckSession
    key: str
    then: Ruling
    url: str = _MODERATION
    model: str = "omni-moderation-latest"
    categories: Sequence[str] = ()
    threshold: float | None = None

    async def __call__(self, passage: Passage) -> Ruling:
        if not passage.text.strip():
            return Pass()
        body: dict[str, Any] = {"model": self.model, "input": passage.text}
        headers = {"authorization": f"Bearer {self.key}"}
        answer = await self.connection.post(self.url, to_json(body).encode(), headers)
        results = _Moderation.model_validate_json(answer).results
        return self.then if any(map(self._is_flagged, results)) else Pass()

    def _is_flagged(self, result: _Moderated) -> bool:
        if self.threshold is not None:
            names = self.categories or result.category_scores.keys()
            return any(result.category_scores.get(name, 0.0) >= self.threshold for name in names)
        if self.categories:
            return any(result.categories.get(name, False) for name in self.categories)
        return result.flagged

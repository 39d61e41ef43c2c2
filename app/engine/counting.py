"""Tokens: how many the next request has by the provider's own count, and how many were used."""

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from app.domain.compaction import is_near
from app.domain.errors import ProviderError
from app.domain.rounds import Round
from app.domain.steps import CallModel, is_paused, open_round_number
from app.domain.turns import Turn
from app.engine.requests import Requests
from app.llm.provider import Provider, count_tokens
from app.telemetry import TOKENS

log = structlog.get_logger(__name__)

_LONGEST = 10.0  # seconds


class TokenCounter:
    """That of one turn. Nobody is asked twice about one request, nor where an estimate says enough, nor where it was
    asked in vain.
    """

    def __init__(self, ancestors: Sequence[Turn], requests: Requests) -> None:
        self._ancestors = ancestors
        self._requests = requests
        self._known: dict[tuple[str, int], int | None] = {}
        self._silent: set[str] = set()

    async def tokens(self, turn: Turn, model: str, provider: Provider) -> int | None:
        """None where an estimate has to do."""
        if model in self._silent or is_paused(turn) or not is_near([*self._ancestors, turn]):
            return None
        key = (model, len(turn.blocks))
        if key not in self._known:
            self._known[key] = await self._count(turn, model, provider)
        return self._known[key]

    async def _count(self, turn: Turn, model: str, provider: Provider) -> int | None:
        request = await self._requests.build(turn, CallModel(open_round_number(turn)), model)
        try:
            async with asyncio.timeout(_LONGEST):
                return await count_tokens(provider, request)
        except ProviderError as error:
            log.warning("tokens.uncounted", error=error.type)
        except TimeoutError:
            log.warning("tokens.uncounted", error="timeout")
        self._silent.add(model)
        return None


def count_usage(round: Round) -> None:
    usage: Mapping[str, object] = round.usage
    for kind, count in usage.items():
        if kind.endswith("_tokens") and isinstance(count, int):
            TOKENS.labels(kind.removesuffix("_tokens")).inc(count)

"""The cache of tool results: an answer is stored for later calls of the same owner, until it expires."""

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hashlib import sha256

from turnstream.domain.turns import ToolSpec
from turnstream.engine.call_policies import PolicyCall
from turnstream.extensions.tool_results.rows import CachedResult, ToolCache
from turnstream.storage.database import retry_while_unavailable
from turnstream.tools.policy import count_policies
from turnstream.tools.tool import Outcome
from turnstream.tools.toolset import Toolset, parse_input


class CachePolicy:
    """Answers calls from the cache, if the policy of their tool has `cache_seconds`."""

    def __init__(self, toolset: Toolset, cache: ToolCache) -> None:
        self._toolset = toolset
        self._cache = cache

    async def run(self, call: PolicyCall, run: Callable[[], Awaitable[Outcome]]) -> Outcome:
        request = call.turn.request
        assert request is not None
        key = cache_key(self._toolset, call.name, call.input_json, request.tools, request.documents)
        if key is None:
            return await run()
        found = await retry_while_unavailable(partial(self._cache.get, call.owner, key))
        if found is not None:
            outcome = Outcome(found.text, data=found.client_data, notes={"cached": round(found.age, 1)})
            outcome = self._toolset.fitted(call.name, outcome, call.tool_use_id, request.tools)
            count_policies(call.label, outcome.notes)
            return await call.check(outcome)  # a guard may be newer than the cached answer
        outcome = await run()
        result, seconds = _to_keep(outcome), self._toolset.policy(call.name, request.tools).cache_seconds
        if result is not None and seconds is not None:
            await retry_while_unavailable(partial(self._cache.put, call.owner, key, call.name, result, seconds))
        return outcome

    async def settled(self, call: PolicyCall, outcome: Outcome) -> Outcome:  # noqa: ARG002
        return outcome


def cache_key(
    toolset: Toolset, name: str, input_json: str, offered: Sequence[ToolSpec], documents: str | None = ""
) -> bytes | None:
    """Returns the key of an answer in the cache. It depends on the present definition of the tool, the `documents` that
    the tool may read, and the input, regardless of the order of members. Returns None for a call that is not cached.
    """
    tool = toolset.find(name, offered)
    if tool is None or tool.policy.cache_seconds is None or not tool.spec.read_only:
        return None
    try:
        value = parse_input(input_json)
    except ValueError:
        return None
    version: list[object] = [tool.spec.name, tool.spec.description, tool.spec.input_schema, tool.policy.results]
    if documents != "":
        version.append(documents)
    return sha256(json.dumps([version, value], sort_keys=True).encode()).digest()


def _to_keep(outcome: Outcome) -> CachedResult | None:
    """Returns the whole answer for the cache. Returns None for a failure, for the answer of a fallback, for files, for
    a part of an answer, and for a call that continues as a job.
    """
    cut = outcome.notes.get("cut")
    is_part = outcome.whole is not None and (cut is None or "kept" in cut)
    if outcome.is_error or outcome.more or is_part or outcome.detached is not None or "fallback" in outcome.notes:
        return None
    return CachedResult(outcome.text if outcome.whole is None else outcome.whole, outcome.data)

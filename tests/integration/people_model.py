"""A model that gives random texts, calls and failures, and checks its requests."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Iterator, Sequence
from random import Random

from tests.integration.people_tools import NAMES
from tests.support.legal.anthropic import request_problems
from tests.support.model_requests import flattened
from turnstream.domain.errors import PermanentError, TransientError
from turnstream.libraries.providers.anthropic.render import render
from turnstream.llm.provider import BlockClosed, BlockOpened, BlockText, ModelRequest, Part
from turnstream.scripted import message_of, text, thinking, tool_use

Said = list[tuple[str, bytes]]


class Model:
    """A model for all turns. `requests` has the requests by the label in each turn's parameters."""

    name = "scripted"

    def __init__(self, random: Random, events: Counter[str]) -> None:
        self.problems: list[str] = []
        self.requests: defaultdict[str, list[Said]] = defaultdict(list)
        self._random = random
        self._events = events
        self._paused: set[str] = set()
        self._called: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Sequence[Part], None]:
        label = request.params["metadata"]["user_id"]
        self._check(label, request)
        if self._random.random() < 0.03:
            raise TransientError("overloaded_error", "not now")
        parts = list(self._reply(label, request))
        cut = self._random.randrange(len(parts)) if self._random.random() < 0.1 else None
        for place, part in enumerate(parts):
            if place == cut:
                self._events["a reply was cut"] += 1
                kind = PermanentError if self._random.random() < 0.1 else TransientError
                raise kind("api_error", "the line is cut")
            await asyncio.sleep(self._random.choice([0, 0, 0, 0, 0, 0, 0.002]))
            yield part

    def _check(self, label: str, request: ModelRequest) -> None:
        body = json.loads(render(request))
        paused = label in self._paused and body["messages"][-1]["role"] == "assistant"
        self.problems += [f"{label}: {problem}" for problem in request_problems(body, paused=paused)]
        self.requests[label].append(flattened(request.messages))

    def _reply(self, label: str, request: ModelRequest) -> Iterator[Sequence[Part]]:
        random = self._random
        said = [thinking("Hm, ", "yes")] if random.random() < 0.2 else []
        wants_tools = random.random() < (0.85 if request.may_use_tools else 0.03)
        calls = random.choice([1, 1, 2, 3]) if wants_tools else 0
        if random.random() < 0.6 or not calls:
            said.append(text("Well, ", "let me ", f"see {random.randrange(1000)}"))
        if not calls and random.random() < 0.1:
            self._paused.add(label)
            return message_of(*said, stop_reason="pause_turn")
        said += [self._call(label, f"call_{id}") for id in random.sample(range(4), calls)]
        refused = random.random() < 0.02
        return message_of(*said, stop_reason="refusal" if refused else None)

    def _call(self, label: str, id: str) -> list[Part]:
        """Returns a random call, which often repeats the call before it."""
        random, before = self._random, self._called[label]
        name, number = random.choice(NAMES), random.choice([1, 2, 3])
        if before and random.random() < 0.4:
            name, number = before[-1]
        before.append((name, number))
        if random.random() < 0.04:
            shell = json.dumps({"type": "tool_use", "id": id, "name": name, "input": {}})
            return [BlockOpened(0, "tool_use", shell, "", id, name), BlockText(0, '{"n": 1, '), BlockClosed(0)]
        return tool_use(name, {"n": number}, id)

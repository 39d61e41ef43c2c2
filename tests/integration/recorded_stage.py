"""Replays recorded conversations: provider, user and tools repeat their recorded parts."""

import json
from base64 import b64decode
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from tests.integration.recordings import Json, asked, content, conversation, oracle, plain, read, rounds_of, sessions
from tests.support import canned
from tests.support.canned import Answer, CannedServer, served
from tests.support.harness import OWNER, Asked, Harness, Replica
from turnstream.domain.blocks import Block
from turnstream.domain.kinds import TEXT, TOOL_RESULT, TOOL_USE
from turnstream.domain.turns import Limits, ToolSpec, Turn, TurnRequest
from turnstream.libraries.providers.anthropic.provider import AnthropicProvider
from turnstream.storage.chats.chats import Chats
from turnstream.storage.chats.exchanges import Exchanges, Target
from turnstream.storage.owners.uploads import Uploads
from turnstream.tools.policy import Policy
from turnstream.tools.tool import File, Outcome, ToolContext
from turnstream.tools.toolset import Toolset

Conversation = list[tuple[str, list[Json]]]

NOT_PARAMS = frozenset({"model", "messages", "tools", "system", "stream", "container"})
NO_MORE = {"type": "error", "error": {"type": "invalid_request_error", "message": "nothing more was recorded"}}


# --- recorded sessions -----------------------------------------------------------------------------------------------


def requests_of(name: str) -> list[Conversation]:
    """Returns the conversation that the request of each round contains. If only replies were recorded, the user's side
    is invented.
    """
    if name in sessions():
        return [conversation(asked(name, number)["messages"]) for number in rounds(name)]
    said: Conversation = [("user", [{"type": TEXT, "text": "Hello"}])]
    requests = []
    for number in rounds(name):
        requests.append(list(said))
        reply = reply_of(name, number)
        said += [("assistant", reply), ("user", [_made_up(block) for block in reply if block["type"] == TOOL_USE])]
    return requests


def reply_of(name: str, number: int) -> list[Json]:
    return [plain(block) for block in message_of(name, number)["content"]]


def message_of(name: str, number: int) -> Json:
    message: Json = oracle(f"sessions/{name}/{number:02}-response.sse")["message"]
    return message


def results_of(name: str) -> dict[str, Json]:
    """Returns the results of the tools of a session, by call."""
    blocks = [block for _, blocks in requests_of(name)[-1] for block in blocks]
    return {block["tool_use_id"]: block for block in blocks if block["type"] == TOOL_RESULT}


def calls_of(name: str) -> list[Json]:
    replies = [block for number in rounds(name) for block in reply_of(name, number)]
    return [block for block in replies if block["type"] == TOOL_USE]


def rounds(name: str) -> range:
    return range(1, rounds_of(name) + 1)


def turn_request(name: str) -> TurnRequest:
    """Returns the request for all turns of a session. Every tool that was called is declared as a local tool, whoever
    defined it.
    """
    recorded = [asked(name, number) for number in rounds(name)] if name in sessions() else [{}]
    first, called = recorded[0], {call["name"]: {"name": call["name"]} for call in calls_of(name)}
    tools = {tool["name"]: tool for request in recorded for tool in request.get("tools", [])}
    ours = called | {name: tool for name, tool in tools.items() if "input_schema" in tool}
    return TurnRequest(
        name,
        "\n\n".join(part["text"] for part in content(first.get("system", []))) or None,
        {member: value for member, value in first.items() if member not in NOT_PARAMS},
        tuple(_spec(tool) for tool in ours.values()),
        limits=Limits(max_rounds=rounds_of(name)),
        provider_tools=tuple(json.dumps(tool) for tool in tools.values() if tool["name"] not in ours),
    )


def _spec(tool: Json) -> ToolSpec:
    schema = tool.get("input_schema", {"type": "object"})
    return ToolSpec(tool["name"], tool.get("description", ""), json.dumps(schema))


def _made_up(call: Json) -> Json:
    said = {"type": TEXT, "text": f"what {call['name']} found"}
    return {"type": TOOL_RESULT, "tool_use_id": call["id"], "content": [said]}


# --- the replay -------------------------------------------------------------------------------------------------------


@dataclass
class RecordedProvider(CannedServer):
    """Plays recorded replies: the requested model is the session, and the number of the request is its round. `heard`
    has the requests.
    """

    heard: defaultdict[str, list[Json]] = field(default_factory=lambda: defaultdict(list))

    def answer_to(self, asked: canned.Asked) -> Answer:
        request = json.loads(asked.body)
        name = request["model"]
        self.heard[name].append(request)
        number = len(self.heard[name])
        if number > rounds_of(name):
            return Answer(json.dumps(NO_MORE).encode(), 400, {"content-type": "application/json"})
        sizes = Random(f"{name} {number}").choices([20, 200, 2_000, 20_000], k=20)
        return Answer(read(f"sessions/{name}/{number:02}-response.sse"), sizes=sizes)


@dataclass
class RecordedTool:
    """Returns the recorded results of a tool. `names` has the session of each chat; `calls` has the inputs of the calls
    so far.
    """

    spec: ToolSpec
    names: Mapping[UUID, str]
    policy: Policy = field(default_factory=Policy)
    calls: defaultdict[str, list[Json]] = field(default_factory=lambda: defaultdict(list))

    async def __call__(self, context: ToolContext, input_json: str) -> Outcome:
        name = self.names[context.chat_id]
        call = {"id": context.tool_use_id, "name": self.spec.name, "input": json.loads(input_json)}
        self.calls[name].append(call)
        result = results_of(name)[context.tool_use_id]
        parts = [inner["text"] if inner["type"] == TEXT else _file(inner) for inner in result["content"]]
        return Outcome.of(parts, is_error=result.get("is_error", False))


def _file(part: Json) -> File:
    return File(b64decode(part["source"]["data"]))


@dataclass
class Stage:
    harness: Harness
    replica: Replica
    provider: RecordedProvider
    tools: Sequence[RecordedTool]
    names: dict[UUID, str]

    async def play(self, name: str) -> list[Turn]:
        """Plays the assistant's turns of a session. The user's next message comes whenever the assistant is
        finished.
        """
        chat = (await Chats(self.harness.database).create(OWNER, None, None, {})).id
        self.names[chat] = name
        request, turns = turn_request(name), list[Turn]()
        while (heard := len(self.provider.heard[name])) < rounds_of(name):
            role, said = requests_of(name)[heard][-1]
            assert role == "user"
            turn = await self._say(chat, said, request)
            turns.append(await self.harness.finish(self.replica, Asked(chat, turn)))
        return turns

    def called(self, name: str) -> list[Json]:
        return [call for tool in self.tools for call in tool.calls[name]]

    async def _say(self, chat: UUID, said: Sequence[Json], request: TurnRequest) -> UUID:
        blocks = [await self._block(place, block) for place, block in enumerate(said)]
        async with Exchanges(self.harness.database).after(Target(OWNER, chat), None) as draft:
            return (await draft.create(blocks, request, None)).assistant_turn.id

    async def _block(self, place: int, said: Json) -> Block:
        """Returns a block in its stored form. A file is stored as an upload."""
        if said["type"] == TEXT:
            return Block(place, 0, 0, TEXT, said["text"])
        if "source" not in said:  # a file that the provider has already
            return Block(place, 0, 0, said["type"], data=json.dumps(said))
        source = said["source"]
        upload = await Uploads(self.harness.database).put(OWNER, source["media_type"], b64decode(source["data"]))
        source = {"type": "upload", "id": str(upload.id), "media_type": upload.media_type}
        return Block(place, 0, 0, said["type"], data=json.dumps(said | {"source": source}))


@asynccontextmanager
async def recorded_stage(harness: Harness, names: Sequence[str]) -> AsyncIterator[Stage]:
    chats: dict[UUID, str] = {}
    tools = {spec.name: RecordedTool(spec, chats) for name in names for spec in turn_request(name).tools}
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(served(RecordedProvider()))
        provider = await stack.enter_async_context(AnthropicProvider("a key", server.url))
        replica = await stack.enter_async_context(harness.replica(provider, toolset=Toolset(tools.values())))
        yield Stage(harness, replica, server, [*tools.values()], chats)

"""The suite for the resumable profile of AG-UI. The server passes the suite, and the suite detects each defect of a
small agent.
"""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest

from tests.conformance.test_conformance import demo_server, held
from turnstream_conformance.ag_ui import examine
from turnstream_conformance.origin import STREAM, Request, Response, origin
from turnstream_conformance.server import MESSAGE
from turnstream_conformance.wire import Json

ROOT = Path(__file__).parents[2]
ORDER = "a run has one beginning and one end, and closes what it opens"
IDS = "ids of messages stay"
ALONE = "a run goes on without readers"
CUTS = "after any cut the snapshot has all, and nothing comes twice"
READERS = "readers at once have the same messages"
POSTS = "a connection posts nothing"
AGAIN = "a message that is sent again is followed"
UNKNOWN = "a thread that is not there is empty"
HEADERS = "headers keep proxies from holding events back"

DEFECTS = [
    ("none", "", ""),
    ("the run stops with its reader", ALONE, "characters"),
    ("there is no snapshot", CUTS, "a MESSAGES_SNAPSHOT comes before all text"),
    ("the snapshot comes behind the text", CUTS, "a MESSAGES_SNAPSHOT comes before all text"),
    ("the snapshot lacks the open text", CUTS, "characters"),
    ("the text of the snapshot comes again", CUTS, "characters"),
    ("the last word is lost", ALONE, "characters"),
    ("late readers miss a word", READERS, "other messages"),
    ("ids are new in each snapshot", IDS, "have the ids"),
    ("the id of the client is replaced", IDS, "another id for the message"),
    ("a connection posts", POSTS, "messages"),
    ("the same message is posted again", AGAIN, "characters"),
    ("an unknown thread is refused", UNKNOWN, "404, not 200"),
    ("an unknown thread has a message", UNKNOWN, "1 messages"),
    ("the end does not come", ORDER, "ended with"),
    ("two ends come", ORDER, "more than one"),
    ("a message stays open", ORDER, "was open"),
    ("the run has another id", ORDER, "other ids"),
    ("runs may be transformed", HEADERS, "may hold a run back"),
]


@dataclass
class Thread:
    messages: list[Json] = field(default_factory=list)
    done: bool = True
    news: asyncio.Event = field(default_factory=asyncio.Event)
    readers: int = 0


class Agent:
    """An agent that repeats the user's message, and that has one defect."""

    def __init__(self, defect: str) -> None:
        self.defect = defect
        self.threads: dict[str, Thread] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, request: Request, response: Response) -> None:
        sent = json.loads(request.body)
        connects = request.path.endswith("/connect")
        thread = self.threads.setdefault(sent["threadId"], Thread())
        if connects and not thread.messages and self.defect == "an unknown thread is refused":
            await response.json(404, {})
            return
        if self.defect == "an unknown thread has a message" and not thread.messages and connects:
            thread.messages = [{"id": "x", "role": "assistant", "content": "?"}]
        posts = not connects or (self.defect == "a connection posts" and thread.done and bool(thread.messages))
        known = any(each["id"] == sent["messages"][0]["id"] for each in thread.messages) if sent["messages"] else False
        if posts and not (known and not thread.done and self.defect != "the same message is posted again"):
            thread.done, thread.news = False, asyncio.Event()
            thread.messages += [{**sent["messages"][0]}, {"id": str(uuid4()), "role": "assistant", "content": ""}]
            task = asyncio.create_task(self.write(thread, thread.messages[-2]["content"].removeprefix("/say ")))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
            posts = not known
        else:
            posts = False
        headers = dict(STREAM)
        if self.defect == "runs may be transformed":
            headers["Cache-Control"] = "no-store"
        await response.start(200, headers)
        thread.readers += 1
        try:
            await self.stream(thread, sent, response, snapshot=not posts)
        finally:
            thread.readers -= 1

    async def write(self, thread: Thread, words: str) -> None:
        answer = thread.messages[-1]
        pieces = words.split(" ")
        if self.defect == "the last word is lost":
            pieces = pieces[:-1]
        for place, piece in enumerate(pieces):
            answer["content"] += (" " if place else "") + piece
            thread.news.set()
            thread.news = asyncio.Event()
            await asyncio.sleep(0.005)
            if self.defect == "the run stops with its reader" and place > 3 and not thread.readers:
                break
        thread.done = True
        thread.news.set()

    async def stream(self, thread: Thread, sent: Json, response: Response, *, snapshot: bool) -> None:
        async def send(type: str, **members: object) -> None:
            await response.send(f"data: {json.dumps({'type': type, **members})}\n\n".encode())

        run = {"threadId": sent["threadId"], "runId": sent["runId"]}
        if self.defect == "the run has another id":
            run["runId"] = "r"
        await send("RUN_STARTED", **run)
        if not thread.messages:
            await self.end(send, run, response)
            return
        answer = thread.messages[-1]
        at = 0
        if snapshot:
            messages = [dict(each) for each in thread.messages]
            at = len(answer["content"])
            if self.defect == "the snapshot lacks the open text" and not thread.done:
                messages[-1]["content"] = ""
            if self.defect == "the text of the snapshot comes again" and not thread.done:
                at = 0
            if self.defect == "late readers miss a word" and not thread.done:
                at += 4
            if self.defect == "ids are new in each snapshot":
                messages[-1]["id"] = str(uuid4())
            if self.defect == "the id of the client is replaced":
                messages[0]["id"] = "server's"
            if self.defect == "the snapshot comes behind the text":
                await send("TEXT_MESSAGE_START", messageId=answer["id"], role="assistant")
                await send("TEXT_MESSAGE_END", messageId=answer["id"])
            if self.defect != "there is no snapshot":
                await send("MESSAGES_SNAPSHOT", messages=messages)
        if not (snapshot and thread.done):
            await send("TEXT_MESSAGE_START", messageId=answer["id"], role="assistant")
            while True:
                news, done, text = thread.news, thread.done, answer["content"]
                if len(text) > at:
                    await send("TEXT_MESSAGE_CONTENT", messageId=answer["id"], delta=text[at:])
                    at = len(text)
                if done:
                    break
                await news.wait()
            if self.defect != "a message stays open":
                await send("TEXT_MESSAGE_END", messageId=answer["id"])
        await self.end(send, run, response)

    async def end(self, send: object, run: Json, response: Response) -> None:
        assert callable(send)
        if self.defect != "the end does not come":
            await send("RUN_FINISHED", **run)
        if self.defect == "two ends come":
            await send("RUN_FINISHED", **run)
        await response.end()


@pytest.mark.parametrize(("defect", "promise", "words"), DEFECTS, ids=[defect for defect, _, _ in DEFECTS])
async def test_a_defect_of_an_agent_is_found(defect: str, promise: str, words: str) -> None:
    async with origin(Agent(defect)) as url:
        report = await examine(url, None, MESSAGE, 25)
    if defect == "none":
        held(report)
        return
    failed = {result.promise: result.text for result in report.results if result.status == "failed"}
    assert words in failed[promise], report.as_text()


async def test_our_agent_holds_the_profile(database_url: str) -> None:
    async with demo_server(database_url) as (url, token):
        report = await examine(f"{url}/api/ag-ui", token, MESSAGE, 25)
    held(report)
    page = (ROOT / "docs/ag-ui-profile.md").read_text(encoding="utf-8")
    assert [f"**{each.rule}.**" for each in report.results if f"**{each.rule}.**" not in page] == []
    readme = (ROOT / "app/turnstream_conformance/README.md").read_text(encoding="utf-8")
    assert [each.promise for each in report.results if each.promise not in readme] == []

"""The text that readers have after a cut connection, or after `kill -9` of their server.

A reader reconnects as the documentation of its server describes. There are three possible results: the text is
complete, the text is incomplete, or the server has no way to reconnect.
"""

import http.client
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from threading import Event
from typing import Any

import msgspec

from tests.bench.load import Dialect
from tests.bench.reader import TOKEN, sent_at
from tests.bench.scenarios import RATE

TURNS = 10
DELTAS = 3 * RATE
IN_MID_TEXT = RATE // 2
PATIENCE = 20.0  # seconds after a kill
RETRY = 0.02
OFFER_RESUMING: frozenset[Dialect] = frozenset({"turnstream", "ui-messages", "agent-protocol"})

Fields = dict[str, str]
Request = tuple[str, str, bytes | None]


class Follower:
    """Starts a turn and follows it. After `cut_at` deltas, it drops its connection once."""

    def __init__(self, dialect: Dialect, port: int, chat: str, cut_at: int = 0) -> None:
        self.text = ""
        self.ended = False
        self.in_mid_text = Event()
        self.killed_at: float | None = None
        self.new_at: float | None = None
        self._dialect = dialect
        self._port = port
        self._chat = chat
        self._cut_at = cut_at
        self._path = ""
        self._cursor = ""

    @property
    def places(self) -> list[int]:
        """Returns the numbers of the received deltas, in the order of their display."""
        return [int(token["place"], 36) for token in TOKEN.finditer(self.text) if token["chat"] == self._chat]

    def follow(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        request = self._begin()
        while not self.ended and time.monotonic() < until:
            with suppress(OSError, http.client.HTTPException):
                if not self._read(*request):
                    return
            if self._dialect not in OFFER_RESUMING:
                return
            request = ("GET", self._path, None)
            time.sleep(RETRY)

    def _begin(self) -> Request:
        message = f"plan deltas={DELTAS} rate={RATE} chat={self._chat}"
        messages = [{"role": "user", "content": message}]
        match self._dialect:
            case "turnstream":
                answer = self._ask("/api/turns", {"blocks": [{"type": "text", "text": message}]})
                self._path = answer["stream_url"]
                return "GET", self._path, None
            case "ui-messages":
                self._path = f"/chat/{self._chat}/stream"
                return "POST", "/chat", msgspec.json.encode({"id": self._chat, "message": message})
            case "agent-protocol":
                self._path = f"/threads/{self._ask('/threads', {})['thread_id']}/runs"
                options = {"assistant_id": "agent", "stream_mode": ["messages-tuple"], "stream_resumable": True}
                body = options | {"on_disconnect": "continue", "input": {"messages": messages}}
                return "POST", f"{self._path}/stream", msgspec.json.encode(body)
            case "chat-completions":
                body = {"model": "bench", "stream": True, "messages": messages}
                return "POST", "/v1/chat/completions", msgspec.json.encode(body)
            case _:
                return "POST", "/chat", msgspec.json.encode({"message": message})

    def _ask(self, path: str, body: object) -> Any:
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)) as connection:
            connection.request("POST", path, msgspec.json.encode(body), {"Content-Type": "application/json"})
            return msgspec.json.decode(connection.getresponse().read())

    def _read(self, method: str, path: str, body: bytes | None) -> bool:
        """Reads one connection. Returns False if the server no longer knows the turn."""
        headers = {"Accept": "text/event-stream", "Content-Type": "application/json"}
        if self._cursor:
            headers["Last-Event-ID"] = self._cursor
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)) as connection:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            if response.status in {204, 404, 422}:
                return False
            if response.status != 200:
                return True
            for fields in events(response):
                self._take(fields)
                if self._cut_at and len(self.text) >= self._cut_at * 15:
                    self._cut_at = 0
                    return True
            # Without an end event, the end of the body is the end of the turn.
            if self._dialect == "agent-protocol":
                self.ended = True
        return True

    def _take(self, fields: Fields) -> None:
        self._cursor = fields.get("id", self._cursor)
        data = fields.get("data", "")
        if data == "[DONE]" or fields.get("event") in {"turn_complete", "message_stop"}:
            self.ended = True
        elif data:
            self._take_data(fields.get("event", ""), msgspec.json.decode(data))
        if len(self.text) >= IN_MID_TEXT * 15:
            self.in_mid_text.set()

    def _take_data(self, event: str, data: Any) -> None:
        match event:
            case "block_delta":
                self._append(data["text"], self.text[: data["offset"]])
            case "reset":
                self.text = ""
            case "content_block_delta":
                self._append(data["delta"].get("text", ""))
            case "messages":
                content = data[0]["content"]
                self._append(content if isinstance(content, str) else "".join(part.get("text", "") for part in content))
            case "metadata":
                if not self._path.endswith("/stream"):
                    self._path += f"/{data['run_id']}/stream"
            case "" if data.get("type") == "start":  # a resumed stream repeats the turn from its start
                self.text = ""
            case "" if data.get("type") == "text-delta":
                self._append(data["delta"])
            case "" if data.get("choices"):
                self._append(data["choices"][0]["delta"].get("content") or "")

    def _append(self, text: str, before: str | None = None) -> None:
        self.text = (self.text if before is None else before) + text
        newest = TOKEN.fullmatch(self.text[-15:])
        if newest and self.killed_at is not None and self.new_at is None and sent_at(newest) > self.killed_at:
            self.new_at = time.monotonic()


def events(response: http.client.HTTPResponse) -> Iterator[Fields]:
    fields: Fields = {}
    while line := response.readline():
        name, _, value = line.decode().rstrip("\r\n").partition(":")
        if name:
            fields[name] = value.removeprefix(" ")
        elif fields:
            yield fields
            fields = {}


def is_whole(follower: Follower) -> bool:
    return follower.ended and follower.places == list(range(DELTAS))


def after_cuts(dialect: Dialect, port: int) -> dict[str, float]:
    """Returns the percentage of turns whose text is complete after one cut, or nothing if there is no way to
    reconnect.
    """
    if dialect not in OFFER_RESUMING:
        return {}
    followers = [Follower(dialect, port, f"{number:03d}", cut_at=IN_MID_TEXT + number) for number in range(TURNS)]
    with ThreadPoolExecutor(TURNS) as pool:
        list(pool.map(lambda each: each.follow(30), followers))
    return {"whole after a cut, %": 100 * sum(map(is_whole, followers)) / TURNS}


class Killed:
    """Readers of turns. The caller kills the server in mid-text and starts it again."""

    def __init__(self, dialect: Dialect, port: int) -> None:
        self._followers = [Follower(dialect, port, f"{number:03d}") for number in range(TURNS)]
        self._pool = ThreadPoolExecutor(TURNS)
        self._following = [self._pool.submit(each.follow, 30 + PATIENCE) for each in self._followers]

    def wait_until_in_mid_text(self) -> bool:
        return all(each.in_mid_text.wait(30) for each in self._followers)

    def note_death(self, at: float) -> None:
        self._at = at
        for each in self._followers:
            each.killed_at = at

    def figures(self) -> dict[str, float]:
        for each in self._following:
            each.result()
        self._pool.shutdown()
        had = sum(len(set(each.places)) for each in self._followers)
        figures = {
            "turns that are whole after kill -9, %": 100 * sum(map(is_whole, self._followers)) / TURNS,
            "text that no reader gets, %": 100 * (1 - had / (TURNS * DELTAS)),
        }
        news = [each.new_at - self._at for each in self._followers if each.new_at is not None]
        return figures | ({"until readers get new text, s": statistics.median(news)} if len(news) == TURNS else {})

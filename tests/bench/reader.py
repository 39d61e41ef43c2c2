"""A reader in Python that survives the death of its server, unlike the load generator."""

import http.client
import re
import time
from contextlib import closing, suppress
from io import BufferedIOBase
from typing import Any

import msgspec

from tests.bench.processes import get
from tests.bench.scenarios import FaultError

PATIENCE = 60.0
RETRY = 0.02
# The format of native/common.h: the chat, the number of the delta, and its send time in microseconds, in base 36.
TOKEN = re.compile(r"\|(?P<chat>[0-9a-z]{3})(?P<place>[0-9a-z]{4})(?P<sent>[0-9a-z]{7})")
TOKEN_LENGTH = 15
TIME_WRAP = 36**7


def begin_turn(port: int, message: str) -> str:
    """Posts a message. Returns the path of the turn's stream."""
    body = msgspec.json.encode({"blocks": [{"type": "text", "text": message}]})
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request("POST", "/api/turns", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
    if response.status != 201:
        raise FaultError(f"a turn was not begun: {response.status} {answer[:200]!r}")
    path: str = msgspec.json.decode(answer)["stream_url"]
    return path


def stored_texts(port: int, path: str) -> list[str]:
    """Returns the stored texts of the turn whose stream is at `path`."""
    status, body = get(port, path.removesuffix("/stream"))
    if status != http.HTTPStatus.OK:
        raise FaultError(f"{path} cannot be read: {status} {body[:200]!r}")
    return [block["text"] for block in msgspec.json.decode(body)["blocks"]]


def sent_at(token: re.Match[str]) -> float:
    """Returns the send time on the clock of `time.monotonic`, which the provider also uses."""
    now = time.monotonic_ns() // 1000
    return (now - (now - int(token["sent"], 36)) % TIME_WRAP) / 1e6


class Reader:
    """Follows a turn to its end, and reconnects with its cursor after each lost connection."""

    def __init__(self, port: int, path: str) -> None:
        self.port = port
        self.path = path
        self.texts: dict[int, str] = {}
        self.new_at: float | None = None
        self._new_since = float("inf")
        self._cursor = ""
        self._ended = False

    @property
    def tokens(self) -> int:
        return sum(map(len, self.texts.values())) // TOKEN_LENGTH

    def watch_for_new(self, since: float) -> None:
        """Watches for new text: `new_at` becomes the arrival of the first delta that the provider sends after
        `since`.
        """
        self._new_since = since

    def follow(self) -> None:
        until = time.monotonic() + PATIENCE
        while not self._ended:
            if time.monotonic() > until:
                raise FaultError(f"a reader had {self.tokens} deltas and no end after {PATIENCE:.0f} s")
            with suppress(OSError, http.client.HTTPException):
                self._read_stream()
            time.sleep(RETRY)

    def _read_stream(self) -> None:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": self._cursor} if self._cursor else {})
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)) as connection:
            connection.request("GET", self.path, headers=headers)
            response = connection.getresponse()
            if response.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
                return
            if response.status != http.HTTPStatus.OK:
                raise FaultError(f"a reader was refused: {response.status} {response.read(200)!r}")
            self.take(response)

    def take(self, lines: BufferedIOBase) -> None:
        """Reads events to the end of the connection."""
        fields: dict[str, str] = {}
        while line := lines.readline():
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            elif fields:
                self._take_event(fields)
                fields = {}

    def _take_event(self, fields: dict[str, str]) -> None:
        if "id" in fields:
            if self._cursor and place_of(fields["id"]) <= place_of(self._cursor):
                raise FaultError(f"after {self._cursor} came {fields['id']}")
            self._cursor = fields["id"]
        event = fields.get("event")
        if event == "block_delta":
            self._take_delta(msgspec.json.decode(fields["data"]))
        elif event == "reset":
            index = msgspec.json.decode(fields["data"])["index"]
            self.texts = {key: text for key, text in self.texts.items() if key < index}
        elif event == "turn_complete":
            self._ended = True
        elif event in {"turn_error", "turn_cancelled"}:
            raise FaultError(f"{event}: {fields['data']}")

    def _take_delta(self, data: dict[str, Any]) -> None:
        text = self.texts.get(data["index"], "")
        if data["offset"] != len(text):
            raise FaultError(f"a delta for {data['offset']} came to a reader that has {len(text)} characters")
        self.texts[data["index"]] = text = text + data["text"]
        newest = TOKEN.fullmatch(text[-TOKEN_LENGTH:])
        if newest and self.new_at is None and sent_at(newest) > self._new_since:
            self.new_at = time.monotonic()


def place_of(cursor: str) -> list[int]:
    return [int(part) for part in cursor.split("-")]


def check_whole(reader: Reader, stored: list[str], chat: str, deltas: int) -> None:
    """Raises FaultError unless the reader has the stored texts, and these are complete for `chat`."""
    if list(reader.texts.values()) != stored:
        raise FaultError(f"{reader.path}: the reader and the rows differ")
    text = "".join(reader.texts.values())
    tokens = list(TOKEN.finditer(text))
    places = [int(token["place"], 36) for token in tokens]
    if places != list(range(deltas)) or len(text) != deltas * TOKEN_LENGTH or {t["chat"] for t in tokens} != {chat}:
        raise FaultError(f"{reader.path}: of {deltas} deltas for {chat} there are {len(tokens)}: {text[:200]}")

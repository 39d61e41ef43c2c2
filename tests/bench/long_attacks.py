"""Attacks that need more than a client: the models and tools of `adversary.py`, or a chat of 5,000 turns.

Each attack returns the HTTP statuses, and the states or errors of its ended turns.
"""

import secrets
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2

from tests.bench.archive_attacks import bombs, foreign_ids, lies, round_trip
from tests.bench.injection_attack import REFUSAL, injected
from tests.support.attacks import ATTACKS

Outcome = int | str

CHAT_TURNS = 5000
SAID = "What was said in a chat, as long as such things are. " * 8
_READERS = 1000
_UPLOAD = 19_900_000
_BURST = 1500  # messages: more than the queue of an owner accepts
_AT_ONCE = 40
_POLL = 0.2  # seconds between two polls
_FEW = 100  # tools in the list after it has shrunk
_BLOCK = {"type": "text", "text": "Begin."}


class LongAttack(NamedTuple):
    """An attack. `chat` has 5,000 turns and belongs to the attacker. `outcomes` are its defined outcomes."""

    run: Callable[[httpx2.Client, str], Sequence[Outcome]]
    outcomes: Collection[Outcome]


def _ended(client: httpx2.Client, made: httpx2.Response) -> Sequence[Outcome]:
    if made.status_code != 201:
        return [made.status_code]
    turn = made.json()["assistant_turn"]
    path = f"/api/chats/{turn['chat_id']}/turns/{turn['id']}"
    while turn["status"] in {"queued", "running"}:
        time.sleep(_POLL)
        turn = client.get(path).raise_for_status().json()
    return [201, turn["error"]["type"] if turn["error"] else turn["status"]]


def _reply(model: str, client: httpx2.Client, _chat: str) -> Sequence[Outcome]:
    return _ended(client, client.post("/api/turns", json={"blocks": [_BLOCK], "model": model}))


def _blocks(client: httpx2.Client, _chat: str) -> Sequence[Outcome]:
    """Causes a reply of 20,000 blocks, and reads the reply in each dialect."""
    made = client.post("/api/turns", json={"blocks": [_BLOCK], "model": "blocks"})
    outcomes, turn = _ended(client, made), made.json()["assistant_turn"]
    chat = turn["chat_id"]
    paths = [
        f"/api/chats/{chat}/turns",
        f"/api/chats/{chat}/turns/{turn['id']}/stream",
        f"/api/ai-sdk/chat/{chat}",
        f"/api/ag-ui/threads/{chat}",
        f"/v1/conversations/conv_{chat.replace('-', '')}/items",
    ]
    return [*outcomes, *(client.get(path).status_code for path in paths)]


def _turn(client: httpx2.Client, chat: str) -> Sequence[Outcome]:
    return _ended(client, client.post(f"/api/chats/{chat}/turns", json={"blocks": [_BLOCK], "on_busy": "enqueue"}))


def _fork(client: httpx2.Client, chat: str) -> Sequence[Outcome]:
    newest = client.get(f"/api/chats/{chat}/turns", params={"limit": 1}).raise_for_status()
    made = client.post(
        f"/api/chats/{chat}/turns/{newest.json()['turns'][-1]['id']}/fork", json={"into": "chat"}, timeout=300
    )
    return [made.status_code]


def _get(path: str, client: httpx2.Client, chat: str) -> Sequence[Outcome]:
    return [client.get(path.format(chat=chat, hex=chat.replace("-", ""))).status_code]


def _all_pages(client: httpx2.Client, chat: str) -> Sequence[Outcome]:
    statuses, before = list[Outcome](), None
    while True:
        page = client.get(f"/api/chats/{chat}/turns", params={"limit": 500} | ({"before": before} if before else {}))
        statuses.append(page.status_code)
        if page.status_code != 200 or not (turns := page.json()["turns"]) or turns[0]["id"] == before:
            return statuses
        before = turns[0]["id"]


def _history(path: str, client: httpx2.Client, _chat: str) -> Sequence[Outcome]:
    """Posts a message together with 5,000 earlier messages."""
    messages = [(("user", "assistant")[number % 2], SAID) for number in range(CHAT_TURNS + 1)]
    return [client.post(path, json=_bodies(messages)[path]).status_code]


def _bodies(messages: Sequence[tuple[str, str]]) -> Mapping[str, Mapping[str, Any]]:
    """Returns, by path, the body of each dialect for these messages (role, text) in a new chat."""
    name = secrets.token_hex(8)
    pairs = [{"role": role, "content": text} for role, text in messages]
    parts = [{"role": role, "parts": [{"type": "text", "text": text}]} for role, text in messages]
    return {
        "/api/ag-ui": {"threadId": name, "runId": "1", "messages": pairs},
        "/api/ai-sdk/chat": {"id": name, "messages": parts},
        "/v1/chat/completions": {"model": "claude-sonnet-5-5", "messages": pairs},
        "/v1/responses": {"model": "claude-sonnet-5-5", "input": pairs},
    }


def _connect(client: httpx2.Client, chat: str) -> Sequence[Outcome]:
    """Connects like an AG-UI client, which sends its whole history."""
    messages = client.get(f"/api/ag-ui/threads/{chat}").raise_for_status().json()["messages"]
    body = {"threadId": chat, "runId": "1", "messages": messages}
    with client.stream("POST", "/api/ag-ui/connect", json=body) as answer:
        for _ in answer.iter_bytes():
            pass
        return [answer.status_code]


def _uploads(client: httpx2.Client, _chat: str) -> Sequence[Outcome]:
    statuses = list[Outcome]()
    for head in (b"%PDF-1.7\n", b"\x89PNG\r\n\x1a\n", b"words "):
        made = client.post("/api/uploads", content=head + secrets.token_hex(_UPLOAD // 2).encode())
        statuses.append(made.status_code)
        if made.status_code == 201:
            statuses.append(client.get(f"/api/uploads/{made.json()['id']}").status_code)
            kind = "image" if head[:1] == b"\x89" else "document"
            block = {"type": kind, "source": {"type": "upload", "id": made.json()["id"]}}
            statuses += _ended(client, client.post("/api/turns", json={"blocks": [_BLOCK, block]}))
    return statuses


def _readers(client: httpx2.Client, _chat: str) -> Sequence[Outcome]:
    """Opens 1,000 connections to one turn at once."""
    text = {"type": "text", "text": "plan deltas=300 rate=50 chat=zzz"}
    made = client.post("/api/turns", json={"blocks": [text]})
    if made.status_code != 201:
        return [made.status_code]
    target, path = urlsplit(str(client.base_url)), made.json()["stream_url"]
    head = f"GET {path} HTTP/1.1\r\nHost: {target.netloc}\r\nAuthorization: {client.headers['authorization']}\r\n\r\n"
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_connection((target.hostname, target.port))) for _ in range(_READERS)
        ]
        for connection in sockets:
            connection.sendall(head.encode())
        statuses = [int(connection.recv(64).split()[1]) for connection in sockets]
        ended = _ended(client, made)
    return [*statuses, *ended]


def _at_once(client: httpx2.Client, requests: Sequence[tuple[str, Mapping[str, Any], str]]) -> Sequence[Outcome]:
    """Posts (path, body, idempotency key) concurrently, without retries. Returns the statuses."""

    def post(sent: tuple[str, Mapping[str, Any], str]) -> Outcome:
        path, body, key = sent
        return other.post(path, json=body, headers={"Idempotency-Key": key}).status_code

    with (
        httpx2.Client(base_url=client.base_url, headers=client.headers, trust_env=False, timeout=300) as other,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        return list(pool.map(post, requests))


def _burst(client: httpx2.Client, _chat: str) -> Sequence[Outcome]:
    return _at_once(client, [("/api/turns", {"blocks": [_BLOCK]}, secrets.token_hex(8)) for _ in range(_BURST)])


def _one_key(client: httpx2.Client, _chat: str) -> Sequence[Outcome]:
    """Posts concurrently with one idempotency key, in each dialect."""
    requests = list[tuple[str, Mapping[str, Any], str]]()
    for path, body in _bodies([("user", "Begin.")]).items():
        requests += [(path, body, secrets.token_hex(8))] * _AT_ONCE
    return _at_once(client, requests)


def _many_mcp_tools(client: httpx2.Client, chat: str) -> Sequence[Outcome]:
    """Lets the MCP server's list of tools grow to 5,000 and change repeatedly. Returns after the list has shrunk
    again.
    """
    models = [*["mcp-swell"] * 5, "mcp-shrink"]
    outcomes = [outcome for model in models for outcome in _reply(model, client, chat)]
    while len(client.get("/api/tools").raise_for_status().json()["tools"]) > _FEW:
        time.sleep(_POLL)
    return outcomes


def _without_chat(
    run: Callable[[httpx2.Client], Sequence[int]], client: httpx2.Client, _chat: str
) -> Sequence[Outcome]:
    return run(client)


LONG_ATTACKS: Mapping[str, LongAttack] = {
    **{name: LongAttack(partial(_without_chat, attack.run), attack.answers) for name, attack in ATTACKS.items()},
    "a reply of 100 MB": LongAttack(partial(_reply, "endless"), {201, "reply_too_long"}),
    "a reply of 100 MB in deltas of five bytes": LongAttack(partial(_reply, "chattering"), {201, "complete"}),
    "100 MB in one event": LongAttack(partial(_reply, "one-event"), {201, "event_too_long"}),
    "3.8 MB in one event": LongAttack(partial(_reply, "long-event"), {201, "complete"}),
    "66,000 objects in one event": LongAttack(partial(_reply, "objects"), {201, "complete"}),
    "20,000 blocks in a reply": LongAttack(_blocks, {200, 201, "complete"}),
    "a tool that answers 50 MB": LongAttack(partial(_reply, "looking"), {201, "complete"}),
    "a tool that answers 450,000 numbers": LongAttack(partial(_reply, "counting"), {201, "complete"}),
    "a tool that is called with 3.8 MB": LongAttack(partial(_reply, "arguing"), {201, "complete"}),
    "a turn in a chat of 5,000": LongAttack(_turn, {201, 202, "complete"}),
    "the chat of 5,000 copied": LongAttack(_fork, {201, 409}),  # 409 while a turn of the chat runs
    "all its pages": LongAttack(_all_pages, {200}),
    "a search over it": LongAttack(partial(_get, "/api/chats?q=said+such&chat={chat}"), {200}),
    "its messages for the AI SDK": LongAttack(partial(_get, "/api/ai-sdk/chat/{chat}"), {200}),
    "its messages for AG-UI": LongAttack(partial(_get, "/api/ag-ui/threads/{chat}"), {200}),
    "AG-UI connects to it": LongAttack(_connect, {200}),
    "its items for OpenAI": LongAttack(partial(_get, "/v1/conversations/conv_{hex}/items?limit=100"), {200}),
    "5,000 messages sent by AG-UI": LongAttack(partial(_history, "/api/ag-ui"), {422}),
    "5,000 messages sent by the AI SDK": LongAttack(partial(_history, "/api/ai-sdk/chat"), {422}),
    "5,000 messages sent to chat completions": LongAttack(partial(_history, "/v1/chat/completions"), {400}),
    "5,000 items sent to responses": LongAttack(partial(_history, "/v1/responses"), {400}),
    "uploads of 20 MB": LongAttack(_uploads, {200, 201, "complete"}),
    "1,000 readers of one turn": LongAttack(_readers, {200, 201, 503, "complete"}),
    "1,500 messages, 40 at once": LongAttack(_burst, {201}),
    "one key 40 times at once, in each dialect": LongAttack(_one_key, {200}),
    "its export and import": LongAttack(round_trip, {"imported"}),
    "an MCP result of 12 MB": LongAttack(partial(_reply, "mcp-long"), {201, "complete"}),
    "an MCP result of 1,000,000 objects": LongAttack(partial(_reply, "mcp-values"), {201, "complete"}),
    "an MCP result without an end": LongAttack(partial(_reply, "mcp-endless"), {201, "complete"}),
    "an MCP result that is slow": LongAttack(partial(_reply, "mcp-slow"), {201, "complete"}),
    "5,000 MCP tools, listed again and again": LongAttack(_many_mcp_tools, {201, "complete"}),
    "archives of kilobytes that become gigabytes": LongAttack(bombs, {"refused", "cut off"}),
    "archives whose headers lie": LongAttack(lies, {"refused", "cut off"}),
    "archives with the ids of another owner": LongAttack(foreign_ids, {"imported", "refused"}),
    "statements injected as the role of the API": LongAttack(injected, {REFUSAL}),
}

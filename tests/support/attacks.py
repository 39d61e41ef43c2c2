"""Requests of one owner that are expensive for other owners. Each attack returns the statuses of its answers."""

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2

_JSON = {"Content-Type": "application/json"}
_SAID = b'{"blocks":[{"type":"text","text":"a"}],'


class Attack(NamedTuple):
    """An attack. `answers` has the statuses that it may get."""

    run: Callable[[httpx2.Client], Sequence[int]]
    answers: frozenset[int]


def _tool(number: int, properties: Mapping[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    return {"type": "client", "name": f"look_{number}", "description": "Looks.", "input_schema": schema}


def _post(client: httpx2.Client, path: str, body: bytes) -> int:
    return client.post(path, content=body, headers=_JSON).status_code


def _types(client: httpx2.Client) -> Sequence[int]:
    tools = [_tool(0, {"a": {"type": [None, *range(4900)]}})]
    return [_post(client, "/api/chats", json.dumps({"settings": {"tools": tools}}).encode())]


def _many_tools(client: httpx2.Client) -> Sequence[int]:
    tools = [_tool(number, {f"p{each}": {} for each in range(900)}) for number in range(200)]
    return [_post(client, "/api/chats", json.dumps({"settings": {"tools": tools}}).encode())]


def _stored_tools(client: httpx2.Client) -> Sequence[int]:
    tools = [_tool(number, {f"p{each}": {} for each in range(900)}) for number in range(5)]
    made = client.post("/api/chats", json={"settings": {"tools": tools}})
    turns = f"/api/chats/{made.json()['id']}/turns"
    return [made.status_code, *(_post(client, turns, _SAID + b'"parent_id":null}') for _ in range(5))]


def _numbers(client: httpx2.Client) -> Sequence[int]:
    return [_post(client, "/api/turns", _SAID + b'"params":{"a":[' + b"0," * 1_900_000 + b"0]}}")]


def _most_numbers(client: httpx2.Client) -> Sequence[int]:
    return [_post(client, "/api/turns", _SAID + b'"params":{"a":[' + b"0," * 49_900 + b"0]}}")]


def _members(client: httpx2.Client) -> Sequence[int]:
    members = b",".join(b'"%d":0' % number for number in range(49_000))
    return [_post(client, "/api/turns", _SAID + members + b"}")]


def _documents(client: httpx2.Client) -> Sequence[int]:
    client.put("/api/documents/long.md", content=b"x" * 3_900_000).raise_for_status()
    block = {"type": "document", "source": {"type": "path", "path": "long.md"}}
    return [client.post("/api/turns", json={"blocks": [block] * 50}).status_code]


def _unread_streams(client: httpx2.Client) -> Sequence[int]:
    """Posts a message of 3.9 MB, and opens 100 streams of its chat that it does not read."""
    text = "x" * 3_900_000
    made = client.post("/api/turns", json={"blocks": [{"type": "text", "text": text}]})
    target = urlsplit(str(client.base_url))
    path = f"/api/chats/{made.json()['assistant_turn']['chat_id']}/stream"
    head = f"GET {path} HTTP/1.1\r\nHost: {target.netloc}\r\nAuthorization: {client.headers['authorization']}\r\n\r\n"
    statuses = [made.status_code]
    with ExitStack() as stack:
        sockets = []
        for _ in range(100):
            connection = stack.enter_context(socket.create_connection((target.hostname, target.port)))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(head.encode())
            sockets.append(connection)
        statuses += [int(connection.recv(16).split()[1]) for connection in sockets]
        client.get("/healthz")
    return statuses


def _pages(client: httpx2.Client) -> Sequence[int]:
    body = {"blocks": [{"type": "text", "text": "x" * 2_000_000}]}
    made = client.post("/api/turns", json=body)
    turns = f"/api/chats/{made.json()['assistant_turn']['chat_id']}/turns"
    statuses = [client.post(turns, json={**body, "on_busy": "enqueue"}).status_code for _ in range(7)]
    return [made.status_code, *statuses, *(client.get(turns, params={"limit": 500}).status_code for _ in range(5))]


def _endless_header(client: httpx2.Client) -> Sequence[int]:
    target = urlsplit(str(client.base_url))
    with socket.create_connection((target.hostname, target.port)) as connection:
        with suppress(ConnectionError):
            connection.sendall(b"GET / HTTP/1.1\r\nx: ")
            for _ in range(200):
                connection.sendall(b"x" * 60_000)
        answer = b""
        with suppress(ConnectionError):
            answer = connection.recv(100)
    return [int(answer.split()[1])] if answer else []  # the answer may be lost while the client still sends


ATTACKS: Mapping[str, Attack] = {
    "a schema with a list of 4,900 types": Attack(_types, frozenset({422})),
    "200 tools of 900 properties": Attack(_many_tools, frozenset({413})),
    "5 turns in a chat with 5 tools of 900 properties": Attack(_stored_tools, frozenset({201})),
    "1,900,000 numbers in a parameter": Attack(_numbers, frozenset({413})),
    "49,900 numbers in a parameter": Attack(_most_numbers, frozenset({422})),
    "49,000 unknown members": Attack(_members, frozenset({422})),
    "a document of 3.9 MB, named 50 times": Attack(_documents, frozenset({422})),
    "a message of 3.9 MB and 100 streams that are not read": Attack(_unread_streams, frozenset({200, 201, 503})),
    "8 messages of 2 MB, and 5 pages of them": Attack(_pages, frozenset({200, 201})),
    "a header of 12 MB": Attack(_endless_header, frozenset({431})),
}

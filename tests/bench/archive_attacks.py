"""Malicious archives for an operator to import. `turnstream owners` imports them beside the server.

Each attack returns the outcomes of its imports: `imported`, `cut off` (the archive ends early), `refused` with one
sentence, or the last lines of another error.
"""

import asyncio
import gzip
import io
import json
import os
import secrets
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import asyncpg
import httpx2

from turnstream.extensions.archives.tar import END, MAX_FILE_BYTES, tar_member, tar_members

ATTACKER = "attacker"
_MEGABYTE = 1_000_000
_LARGEST = MAX_FILE_BYTES - _MEGABYTE
_LONG = 300 * _MEGABYTE
_WORDS = {"blocks": [{"type": "text", "text": "plan deltas=2 rate=50 chat=arc"}]}
# A chat of another owner, and the columns that an archive could change.
FOREIGN_CHAT = "SELECT id FROM chats WHERE owner = 'calm' ORDER BY id LIMIT 1"
_OF_CHAT = """
SELECT chats.owner, chats.title, array_agg(turns.id ORDER BY turns.id) AS turns
FROM chats LEFT JOIN turns ON chat_id = chats.id WHERE chats.id = $1 GROUP BY chats.id
"""

Parts = Sequence[tuple[str, bytes]]


def round_trip(_client: httpx2.Client, chat: str) -> Sequence[str]:
    """Exports the chat, and imports the archive for another owner."""
    return [_imported(_exported(chat))]


def bombs(client: httpx2.Client, _chat: str) -> Sequence[str]:
    """Imports archives of some kilobytes that would expand to gigabytes."""
    head, documents, uploads = tar_member(*_small_archive(client)[0]), "documents/000001.jsonl", b""
    for id in (uuid4() for _ in range(10)):
        uploads += tar_member(f"uploads/{id}/row.jsonl", _row(id)) + _with_holes(f"uploads/{id}/content", _LARGEST)
    return [
        _imported(head, compressed_zeros=_LONG),
        _imported(head + _with_holes(documents, 7_000 * _MEGABYTE) + END),
        _imported(head + _with_holes(documents, _LARGEST) + END),
        _imported(head + _with_holes(f"chats/{uuid4()}/0-chats-000001.jsonl", _LARGEST) + END),
        _imported(head + uploads + END),
    ]


def lies(client: httpx2.Client, _chat: str) -> Sequence[str]:
    """Imports archives with wrong sizes in their headers, or with an extended header of 300 MB."""
    head = tar_member(*_small_archive(client)[0])
    return [
        _imported(head + _header("documents/000001.jsonl", _LARGEST)),
        _imported(head + _header("documents/000001.jsonl", MAX_FILE_BYTES + 1)),
        _imported(head + _header("documents/000001.jsonl", 7_000 * _MEGABYTE)),
        _imported(head + _header("pax", _LONG, tarfile.XHDTYPE), zeros=_LONG),
        _imported(head + _header("name", _LONG, tarfile.GNUTYPE_LONGNAME), zeros=_LONG),
    ]


def foreign_ids(client: httpx2.Client, _chat: str) -> Sequence[str]:
    """Imports archives that contain the id of another owner's chat, or rows for this chat."""
    parts = _small_archive(client)
    (mine,) = {name.split("/")[1].encode() for name, _ in parts if name.startswith("chats/")}
    foreign = asyncio.run(_fetch(FOREIGN_CHAT))
    theirs, before = str(foreign["id"]).encode(), asyncio.run(_fetch(_OF_CHAT, foreign["id"]))

    taken = [(name.replace(mine.decode(), theirs.decode()), content.replace(mine, theirs)) for name, content in parts]
    outcomes = [_imported(_packed(taken))]
    for table in ("chats", "turns"):
        rows = [(name, content.replace(mine, theirs) if f"-{table}-" in name else content) for name, content in parts]
        outcomes.append(_imported(_packed(rows)))
    changed = asyncio.run(_fetch(_OF_CHAT, foreign["id"])) != before
    return [*outcomes, *(["the other owner's chat was changed"] if changed else [])]


def _packed(parts: Parts) -> bytes:
    return b"".join(tar_member(*part) for part in parts) + END


def _row(id: UUID) -> bytes:
    return json.dumps({"id": str(id), "media_type": "text/plain", "created_at": "2026-01-01T00:00:00Z"}).encode()


def _header(name: str, size: int, type: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, type
    return info.tobuf(tarfile.GNU_FORMAT)


def _with_holes(name: str, size: int) -> bytes:
    """Returns the header of a sparse file without any data, in the old GNU format."""
    header = bytearray(_header(name, 0, tarfile.GNUTYPE_SPARSE))
    digits = f"{size:011o}".encode() + b"\0"
    header[386:398], header[398:410], header[483:495] = digits, b"%011o\0" % 0, digits  # offset, length, file size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def _small_archive(client: httpx2.Client) -> Parts:
    """Returns the archive of a chat with one turn."""
    return [*tar_members(io.BytesIO(_exported(small_turn(client)["chat_id"])))]


def small_turn(client: httpx2.Client) -> dict[str, Any]:
    """Returns an ended turn of the attacker, in a new chat."""
    made = client.post("/api/turns", json=_WORDS).raise_for_status().json()["assistant_turn"]
    path = f"/api/chats/{made['chat_id']}/turns/{made['id']}"
    while (turn := client.get(path).raise_for_status().json())["status"] in {"queued", "running"}:
        time.sleep(0.2)
    return cast("dict[str, Any]", turn)


def _exported(chat: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder, "archive.tar")
        _owners("export", ATTACKER, str(archive), "--chat", chat).check_returncode()
        return archive.read_bytes()


def _imported(archive: bytes, *, zeros: int = 0, compressed_zeros: int = 0) -> str:
    """Imports the archive for a new owner, though its ids exist already. The zeros after the archive are written in
    pieces and never held in this process's memory, because a command inherits the peak memory of its parent process.
    """
    with tempfile.NamedTemporaryFile() as file:
        if compressed_zeros:
            with gzip.open(file, "wb") as packed:
                packed.write(archive)
                for _ in range(compressed_zeros // _MEGABYTE):
                    packed.write(bytes(_MEGABYTE))
        else:
            file.write(archive)
            file.truncate(len(archive) + zeros)
        file.flush()
        done = _owners("import", file.name, "--owner", secrets.token_hex(4))
    error = done.stderr.decode()
    if done.returncode == 0:
        return "imported"
    sentence = error.splitlines()[-1]
    if done.returncode != 1 or not sentence.startswith("turnstream: "):
        return error[-300:]
    return "cut off" if "ends too early" in sentence else "refused"


def _owners(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [str(Path(sys.executable).with_name("turnstream")), "owners", *arguments]
    return subprocess.run(command, capture_output=True, check=False)


async def _fetch(query: str, *values: object) -> asyncpg.Record:
    connection = await asyncpg.connect(os.environ["DATABASE_URL"])
    try:
        row = await connection.fetchrow(query, *values)
    finally:
        await connection.close()
    assert row is not None
    return row

"""Encrypted messages and answers: the stored rows are encrypted, and users see the same as before."""

from typing import Any

import pytest
from msgspec.json import decode

from tests.support.http_client import Client
from tests.support.http_server import serving
from turnstream.extensions.encryption.codec import labels_of
from turnstream.libraries.secrets.sealing import new_master_key
from turnstream.scripted import message_of, text, thinking, tool_use
from turnstream.storage.database import Statement
from turnstream.tools.tool import ToolResult, tool
from turnstream.tools.toolset import Toolset

pytestmark = pytest.mark.extensions("chat_stream", "encryption", "fork", "inbox", "search", "tool_results")

GET_ROWS = Statement(
    """
    SELECT blocks::text AS row FROM blocks UNION ALL SELECT words::text FROM search_texts
    UNION ALL SELECT vocabulary::text FROM search_segments WHERE vocabulary IS NOT NULL
    """
)
WORDS = {"message-77aa", "thought-77aa", "answer-77aa", "call-77aa", "result-77aa", "shown-77aa", "ending-77aa"}
UPLOAD, STEER, OTHER = (f"0199a1b2-0000-7000-8000-00000000000{n}" for n in range(3))


@tool(approval="always", max_result_chars=60)
async def look(place: str) -> ToolResult:
    """Looks."""
    return ToolResult(f"result-77aa of {place}. {'It is calm. ' * 20}", {"shown": "shown-77aa"})


def _without_times(block: dict[str, Any]) -> dict[str, Any]:
    return {**block, "notes": sorted(block.get("notes", ()))}


async def seen_and_stored(url: str, **settings: Any) -> tuple[list[Any], str]:
    """Returns a conversation as users see it, and its rows as text."""
    async with (
        serving(url, Toolset([look]), master_key=new_master_key(), **settings) as server,
        Client(server.url) as api,
    ):
        asking = message_of(
            thinking("thought-77aa"), text("answer-77aa"), tool_use("look", {"place": "call-77aa"}, "c")
        )
        chat = await api.chat(title="Sea")
        said = await api.say(chat, "message-77aa", model=server.scripts.model(asking, message_of(text("ending-77aa"))))
        async with api.follow(said.stream_url) as events:
            asked = await anext(event async for event in events if event.name == "action_required")
        (waiting,) = (await api.json("GET", "/api/waiting"))["calls"]
        action = {"type": "approve", "tool_use_id": "c", "input_digest": asked.data["calls"][0]["input_digest"]}
        await api.json("POST", f"{said.url}/actions", 202, json={"actions": [action]})
        await api.events(said.stream_url)
        fork = await api.json("POST", f"{said.url}/fork", 201, json={"into": "chat"})
        copy = f"/api/chats/{fork['assistant_turn']['chat_id']}/turns/{fork['assistant_turn']['id']}"
        turns = [await api.json("GET", path) for path in (said.user_url, said.url, copy)]
        result = await api.get(f"{copy}/results/c")
        found = await api.json("GET", "/api/chats", params={"q": "message-77aa"})
        async with api.follow(f"{chat}/stream") as events:
            first = await anext(event async for event in events if event.name == "turn")
        blocks = [first.data["blocks"], *(turn["blocks"] for turn in turns)]
        shown = [waiting["input"], result.text, *([_without_times(each) for each in of_turn] for of_turn in blocks)]
        rows = await server.services.storage.database.rows(GET_ROWS)
        assert bool(found["chats"]) != settings.get("encrypt_texts", False), "a search finds plain texts alone"
        return shown, "\n".join(row["row"] for row in rows)


async def test_people_see_the_decrypted_contents_of_rows(
    database_url: str, other_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnstream.extensions.chat_stream.reader._BEGINNING", 5)
    monkeypatch.setattr("turnstream.extensions.chat_stream.reader._TEXT_PORTION", 4)
    plain, stored = await seen_and_stored(database_url)
    assert {word for word in WORDS if word in stored} == WORDS
    sealed, stored = await seen_and_stored(other_database_url, encrypt_texts=True)
    assert sealed == plain
    assert {word for word in WORDS if word in stored} == set()


@pytest.mark.parametrize(
    ("data", "labels"),
    [
        ('{"text":"no id"}', {}),
        (f'{{"steer":"{STEER}"}}', {"steer": STEER}),
        (
            f'{{"parts":[{{"source":{{"type":"upload","id":"{UPLOAD}"}}}},{{"title":"{OTHER}"}}]}}',
            {"source": [{"type": "upload", "id": UPLOAD}], "named": [OTHER]},
        ),
    ],
    ids=["none", "steer", "upload"],
)
def test_ids_that_sql_looks_for_stay_readable(data: str, labels: dict[str, Any]) -> None:
    assert decode(f'{{"sealed":""{labels_of(data)}}}') == {"sealed": "", **labels}

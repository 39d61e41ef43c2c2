"""Turns that wait for a person: client tools and approvals, answered through the API."""

from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
import pytest_asyncio

from tests.integration.api.conftest import NewOwner
from tests.support.http_client import Client, Event, Said, said, words_of
from tests.support.http_server import Server, serving
from tests.support.openapi_document import Document
from tests.support.pictures import PIXEL
from turnstream.domain.results import parts_of
from turnstream.libraries.audit_entries import newest_entries
from turnstream.llm.provider import ModelRequest
from turnstream.scripted import Pause, Reply, message_of, text, tool_use
from turnstream.tools.tool import tool, tools_of
from turnstream.tools.toolset import Toolset

pytestmark = pytest.mark.asyncio(loop_scope="session")

FIND = {
    "type": "client",
    "name": "findNodes",
    "description": "Finds nodes of the graph that the user sees.",
    "input_schema": {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]},
}
CATS = {"kind": "cat"}


@dataclass
class Office:
    """Tools that record their effects."""

    sent: list[tuple[str, str]] = field(default_factory=list)

    @tool(approval="always")
    async def send_mail(self, to: str, words: str) -> str:
        """Sends a mail."""
        self.sent.append((to, words))
        return f"sent to {to}"

    @tool(approval=lambda input: input["euros"] > 100)
    async def pay(self, euros: int) -> str:
        """Pays."""
        self.sent.append(("bank", str(euros)))
        return f"paid {euros}"

    @tool(approval="always", approval_scope="call")
    async def wire(self, euros: int) -> str:
        """Wires."""
        self.sent.append(("bank", str(euros)))
        return f"wired {euros}"

    @tool(approval="always", approval_expiry=0.001)
    async def launch(self) -> str:
        """Launches."""
        self.sent.append(("pad", "launch"))
        return "up"


@pytest.fixture(scope="module")
def shared_office() -> Office:
    return Office()


@pytest.fixture
def office(shared_office: Office) -> Office:
    shared_office.sent.clear()
    return shared_office


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def desk(shared_database_url: str, shared_office: Office) -> AsyncIterator[Server]:
    async with serving(shared_database_url, Toolset(tools_of(shared_office))) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def clerk(desk: Server, document: Document) -> AsyncIterator[Client]:
    owner = f"owner {uuid4()}"
    async with Client(desk.url, document, await desk.token(owner), owner) as client:
        yield client


def calls_of(*calls: tuple[str, dict[str, Any], str]) -> Reply:
    return message_of(*(tool_use(name, given, id) for name, given, id in calls))


async def until_asked(api: Client, turn: Said, cursor: str | None = None) -> Event:
    async with api.follow(turn.stream_url, cursor) as events:
        async for event in events:
            if event.name == "action_required":
                return event
    raise AssertionError("nothing was asked for")


async def until_waiting(api: Client, turn: Said) -> Any:
    """Returns the turn as soon as it waits and no replica runs it."""
    await until_asked(api, turn)
    while (found := await api.json("GET", turn.url))["status"] == "running":
        pass
    return found


async def answer(
    api: Client, turn: Said, *actions: dict[str, Any], expect: int = 202, headers: dict[str, str] | None = None
) -> Any:
    return await api.json("POST", f"{turn.url}/actions", expect, json={"actions": list(actions)}, headers=headers)


def result(call: str, output: Any, **more: Any) -> dict[str, Any]:
    return {"type": "result", "tool_use_id": call, "output": output, **more}


def decision(kind: str, wanted: dict[str, Any], **more: Any) -> dict[str, Any]:
    ids = {"tool_use_id": wanted["tool_use_id"], "input_digest": wanted["input_digest"]}
    return {"type": kind, **ids, **more}


def results_of(turn: Any) -> dict[str, tuple[str, bool]]:
    return {b["tool_use_id"]: (b["text"], b["is_error"]) for b in turn["blocks"] if b["type"] == "tool_result"}


async def finished(api: Client, turn: Said) -> Any:
    await api.events(turn.stream_url)
    return await api.json("GET", turn.url)


def image(source: dict[str, Any]) -> dict[str, Any]:
    return {"type": "image", "source": source}


# --- client tools ------------------------------------------------------------------------------------------------


async def test_a_turn_waits_for_every_client_tool_and_continues_with_the_results(api: Client, server: Server) -> None:
    model, provider = server.scripts.provider(
        calls_of(("findNodes", CATS, "a"), ("findNodes", {"kind": "dog"}, "b")), message_of(text("Two."))
    )
    turn = await api.say(await api.chat(), model=model, tools=[FIND])
    asked = await until_asked(api, turn)
    assert [(call["tool_use_id"], call["type"], call["input"]) for call in asked.data["calls"]] == [
        ("a", "client", CATS),
        ("b", "client", {"kind": "dog"}),
    ]
    waiting = await until_waiting(api, turn)
    assert waiting["status"] == "waiting"
    assert waiting["actions"] == asked.data["calls"]
    half = await answer(api, turn, result("b", "Rex"))
    assert [call["tool_use_id"] for call in half["actions"]] == ["a"]
    await answer(api, turn, {**result("a", {"names": ["Tom"]}), "data": {"nodes": [7]}})
    ended = await finished(api, turn)
    assert ended["status"] == "complete"
    data = {block["tool_use_id"]: block.get("data") for block in ended["blocks"] if block["type"] == "tool_result"}
    assert data == {"a": {"nodes": [7]}, "b": None}
    assert results_of(ended) == {"a": ('{"names":["Tom"]}', False), "b": ("Rex", False)}
    sent = provider.requests[-1].messages[-1]
    assert [block.tool_use_id for block in sent.blocks] == ["a", "b"]


async def test_a_turn_that_has_its_answers_waits_no_more_though_it_is_read_meanwhile(
    api: Client, server: Server
) -> None:
    model = server.scripts.model(calls_of(("findNodes", CATS, "a")), message_of(text("Done.")))
    turn = await api.say(await api.chat(), model=model, tools=[FIND])
    asked = await until_asked(api, turn)
    await until_waiting(api, turn)
    async with api.follow(turn.stream_url, asked.id) as events:
        answered = await answer(api, turn, result("a", "none"))
        assert (answered["status"] != "waiting", answered["actions"]) == (True, [])
        assert [event.name async for event in events][-1] == "turn_complete"


async def test_a_reader_that_kept_its_cursor_gets_the_request_once_and_then_the_rest(
    api: Client, server: Server
) -> None:
    model = server.scripts.model(calls_of(("findNodes", CATS, "a")), message_of(text("Done.")))
    turn = await api.say(await api.chat(), model=model, tools=[FIND])
    asked = await until_asked(api, turn)
    await answer(api, turn, result("a", "none", is_error=True))
    rest = await api.events(turn.stream_url, asked.id)
    whole = await api.events(turn.stream_url)
    names = [event.name for event in whole]
    assert names.count("action_required") == 1
    after = names.index("action_required") + 1
    assert [event.name for event in rest if event.id] == names[after:]


async def test_the_empty_result_of_a_client_tool_is_sent_as_a_text(api: Client, server: Server) -> None:
    model = server.scripts.model(calls_of(("findNodes", CATS, "a")), message_of(text("None.")))
    turn = await api.say(await api.chat(), model=model, tools=[FIND])
    await until_asked(api, turn)
    await answer(api, turn, result("a", None))
    assert results_of(await finished(api, turn)) == {"a": ("The call succeeded and returned nothing.", False)}


@pytest.mark.extensions("documents")
async def test_a_client_tool_may_return_files_among_its_words(api: Client, server: Server, new_owner: NewOwner) -> None:
    model, provider = server.scripts.provider(calls_of(("findNodes", CATS, "a")), message_of(text("Two.")))
    await api.put("/api/documents/notes/cats.md", content="Tom and Kitty.")
    await api.put("/api/documents/notes/dogs.md", content="")
    turn = await api.say(await api.chat(), model=model, tools=[FIND])
    await until_asked(api, turn)
    said = [
        {"type": "text", "text": "Seen:"},
        image({"type": "base64", "data": b64encode(PIXEL).decode()}),
        {"type": "document", "source": {"type": "path", "path": "notes/dogs.md"}},
        {"type": "document", "source": {"type": "path", "path": "notes/cats.md"}},
    ]
    nothing = {"type": "upload", "id": str(uuid4())}
    shown = {"type": "result", "tool_use_id": "a", "blocks": said}
    for wrong, names in (
        ({**shown, "output": 1}, "actions.0"),
        ({**shown, "blocks": []}, "actions.0.blocks"),
        ({**shown, "blocks": [{"type": "sound"}]}, "actions.0.blocks.0.type"),
        ({**shown, "blocks": [image({"type": "base64", "data": "x"})]}, "actions.0.blocks.0.source.data"),
        ({**shown, "blocks": [image(nothing)]}, "actions.0.blocks.0.source.id"),
    ):
        refused = await answer(api, turn, wrong, expect=422)
        assert refused["errors"][0]["field"] == names
    await answer(api, turn, shown)
    (result,) = [block for block in (await finished(api, turn))["blocks"] if block["type"] == "tool_result"]
    assert result["text"] == "Seen:\nTom and Kitty."
    before, picture, after = result["content"]
    assert (before["length"], after["length"]) == (5, 14)
    assert "data" not in result
    content = await api.get(f"/api/uploads/{picture['source']['id']}")
    assert content.content == PIXEL
    other = await new_owner()
    assert (await other.get(f"/api/uploads/{picture['source']['id']}")).status_code == 404
    (told,) = provider.requests[-1].messages[-1].blocks
    assert [part["type"] for part in parts_of(told)] == ["text", "image", "text"]


@pytest.mark.extensions("documents")
async def test_an_answer_is_repeated_though_its_upload_is_gone(api: Client, server: Server) -> None:
    await api.put("/api/documents/notes/tom.md", content="Tom")
    shown = {"type": "document", "source": {"type": "path", "path": "notes/tom.md"}}
    model = server.scripts.model(calls_of(("findNodes", CATS, "a")), message_of(text("I see.")))
    words, chat = {"role": "user", "blocks": [shown], "model": model, "tools": [FIND]}, await api.chat()
    key, other = ({"Idempotency-Key": str(uuid4())} for _ in range(2))
    first = await api.json("POST", f"{chat}/turns", 201, json=words, headers=key)
    turn = Said(first["user_turn"], first["assistant_turn"], first["stream_url"])
    await until_asked(api, turn)
    result = {"type": "result", "tool_use_id": "a", "blocks": [shown]}
    await answer(api, turn, result, headers=other)
    await finished(api, turn)
    await api.delete("/api/documents/notes/tom.md")
    assert (await answer(api, turn, result, headers=other))["id"] == turn.assistant["id"]
    again = await api.json("POST", f"{chat}/turns", 201, json=words, headers=key)
    assert again["assistant_turn"]["id"] == turn.assistant["id"]
    await answer(api, turn, result, expect=422)
    await answer(api, turn, {**result, "is_error": True}, expect=422, headers=other)
    await api.json("POST", f"{chat}/turns", 422, json=words)


async def test_words_of_a_client_that_are_cut_leave_its_files(api: Client, server: Server) -> None:
    model = server.scripts.model(calls_of(("findNodes", CATS, "a")), message_of(text("Much.")))
    turn = await api.say(await api.chat(), model=model, tools=[FIND])
    await until_asked(api, turn)
    picture = image({"type": "base64", "data": b64encode(PIXEL).decode()})
    blocks = [{"type": "text", "text": "a" * 99_990}, picture, {"type": "text", "text": "b" * 99}]
    await answer(api, turn, {"type": "result", "tool_use_id": "a", "blocks": blocks})
    (result,) = [block for block in (await finished(api, turn))["blocks"] if block["type"] == "tool_result"]
    assert "b" * 9 + "\n\n[The result was cut here: 90 of its 100,090" in result["text"]
    assert [part["type"] for part in result["content"]] == ["text", "image"]
    assert result["content"][0]["length"] == len(result["text"])


async def test_a_turn_that_waits_can_be_cancelled_and_its_calls_have_results(api: Client, server: Server) -> None:
    turn = await api.say(await api.chat(), model=server.scripts.model(calls_of(("findNodes", CATS, "a"))), tools=[FIND])
    await until_waiting(api, turn)
    cancelled = await api.post(f"{turn.url}/cancel")
    assert cancelled.status_code in {200, 202}, cancelled.text  # 200 if the turn has already ended
    ended = await finished(api, turn)
    assert (ended["status"], ended["actions"]) == ("cancelled", [])
    assert results_of(ended) == {"a": ("This call has no result: the turn ended (cancelled).", True)}
    late = await answer(api, turn, result("a", "Tom"), expect=409)
    assert late["code"] == "call_over"
    assert "has ended (cancelled)" in late["detail"]


@pytest.mark.parametrize(
    ("action", "status", "names"),
    [
        (result("nobody", "x"), 422, "actions.0.tool_use_id"),
        ({"type": "deny", "tool_use_id": "a", "input_digest": "0"}, 422, "actions.0.type"),
        ({"type": "result"}, 422, "actions.0.tool_use_id"),
        ({"type": "guess", "tool_use_id": "a"}, 422, "actions.0.type"),
        (result("a", "\u0000"), 422, "actions.0.output"),
    ],
)
async def test_an_answer_that_does_not_fit_is_refused_by_field(
    api: Client, server: Server, action: dict[str, Any], status: int, names: str
) -> None:
    turn = await api.say(await api.chat(), model=server.scripts.model(calls_of(("findNodes", CATS, "a"))), tools=[FIND])
    await until_asked(api, turn)
    refused = await answer(api, turn, action, expect=status)
    assert [error["field"] for error in refused["errors"]] == [names]
    assert [call["tool_use_id"] for call in (await api.json("GET", turn.url))["actions"]] == ["a"]
    await api.json("POST", f"{turn.url}/cancel", 202)


async def test_all_answers_of_a_request_are_taken_or_none(api: Client, server: Server) -> None:
    calls = calls_of(("findNodes", CATS, "a"), ("findNodes", CATS, "b"))
    turn = await api.say(await api.chat(), model=server.scripts.model(calls), tools=[FIND])
    await until_asked(api, turn)
    await answer(api, turn, result("a", "Tom"), result("c", "Tom"), expect=422)
    await answer(api, turn, result("a", "Tom"), result("a", "Tim"), expect=422)
    assert len((await api.json("GET", turn.url))["actions"]) == 2
    await api.json("POST", f"{turn.url}/cancel", 202)


async def test_an_answer_that_is_sent_again_with_its_key_is_taken_once(api: Client, server: Server) -> None:
    model = server.scripts.model(calls_of(("findNodes", CATS, "a")), message_of(text("Done.")))
    turn = await api.say(await api.chat(), model=model, tools=[FIND])
    await until_asked(api, turn)
    key = str(uuid4())
    for _ in range(2):
        await answer(api, turn, result("a", "Tom"), headers={"Idempotency-Key": key})
    refused = await answer(api, turn, result("a", "Tim"), expect=422, headers={"Idempotency-Key": key})
    assert refused["errors"][0]["field"] == "Idempotency-Key"
    assert results_of(await finished(api, turn)) == {"a": ("Tom", False)}


# --- approvals ---------------------------------------------------------------------------------------------------

MAIL = ("send_mail", {"to": "ada", "words": "Hi"}, "a")
OTHER_MAIL = ("send_mail", {"to": "bob", "words": "Hi"}, "b")


async def asked_for(desk: Server, clerk: Client, *calls: tuple[str, dict[str, Any], str]) -> tuple[Said, Any]:
    model = desk.scripts.model(calls_of(*calls), message_of(text("Done.")))
    turn = await clerk.say(await clerk.chat(), model=model)
    return turn, (await until_asked(clerk, turn)).data["calls"]


async def test_one_call_is_allowed_with_other_arguments_and_one_refused(
    desk: Server, clerk: Client, office: Office
) -> None:
    turn, (first, second) = await asked_for(desk, clerk, MAIL, OTHER_MAIL)
    assert office.sent == []
    await answer(clerk, turn, decision("approve", first, input={"to": "ada", "words": "Dear Ada"}))
    await answer(clerk, turn, decision("deny", second, reason="not him"))
    ended = await finished(clerk, turn)
    assert office.sent == [("ada", "Dear Ada")]
    told = results_of(ended)
    assert told["a"][0].startswith('The user changed the input to {"to":"ada","words":"Dear Ada"}')
    assert told["b"] == ("The user did not allow this call of send_mail. The user says: not him", True)
    notes = {
        block["tool_use_id"]: block["notes"]["approval"] for block in ended["blocks"] if block["type"] == "tool_result"
    }
    assert notes["a"]["decision"] == "approve"
    assert notes["b"] == {"decision": "denied"}
    assert ended["degraded"] == []


async def test_a_function_of_the_input_decides_who_is_asked(desk: Server, clerk: Client, office: Office) -> None:
    turn, asked = await asked_for(desk, clerk, ("pay", {"euros": 10}, "a"), ("pay", {"euros": 1000}, "b"))
    assert [call["tool_use_id"] for call in asked] == ["b"]
    waiting = await until_waiting(clerk, turn)
    assert results_of(waiting) == {"a": ("paid 10", False)}
    await answer(clerk, turn, decision("approve", asked[0]))
    await finished(clerk, turn)
    assert office.sent == [("bank", "10"), ("bank", "1000")]


async def test_a_decision_is_used_once(desk: Server, clerk: Client, office: Office) -> None:
    turn, (first, second) = await asked_for(desk, clerk, MAIL, OTHER_MAIL)
    await answer(clerk, turn, decision("approve", first))
    again = await answer(clerk, turn, decision("approve", first), expect=409)
    assert again["code"] == "call_answered"
    assert "already has an answer (approve" in again["detail"]
    changed = await answer(clerk, turn, decision("deny", first), expect=409)
    assert "already has an answer" in changed["detail"]
    await answer(clerk, turn, decision("deny", second))
    await finished(clerk, turn)
    assert office.sent == [("ada", "Hi")]


async def test_a_decision_about_another_input_is_refused(desk: Server, clerk: Client, office: Office) -> None:
    turn, (first, second) = await asked_for(desk, clerk, MAIL, OTHER_MAIL)
    swapped = decision("approve", {**first, "input_digest": second["input_digest"]})
    refused = await answer(clerk, turn, swapped, expect=409)
    assert "does not match the input" in refused["detail"]
    await answer(clerk, turn, decision("deny", first), decision("deny", second))
    await finished(clerk, turn)
    assert office.sent == []


async def test_changed_arguments_are_validated_again(desk: Server, clerk: Client, office: Office) -> None:
    turn, (first,) = await asked_for(desk, clerk, MAIL)
    refused = await answer(clerk, turn, decision("approve", first, input={"to": 7}), expect=422)
    assert refused["errors"][0]["field"] == "actions.0.input"
    await answer(clerk, turn, decision("approve", first))
    await finished(clerk, turn)
    assert office.sent == [("ada", "Hi")]


# --- approvals that are remembered -----------------------------------------------------------------------------------


CHAT = {"scope": "chat"}


async def asked_in(desk: Server, clerk: Client, chat: str, *calls: tuple[str, dict[str, Any], str]) -> tuple[Said, Any]:
    """Returns a turn in this chat and its asks. The model calls the tools of `calls` in its first round."""
    turn = await clerk.say(chat, model=desk.scripts.model(calls_of(*calls), message_of(text("Done."))))
    return turn, (await until_asked(clerk, turn)).data["calls"]


async def approval_notes(clerk: Client, turn: Said) -> list[Any]:
    blocks = (await finished(clerk, turn))["blocks"]
    return [block["notes"]["approval"] for block in blocks if block["type"] == "tool_result"]


async def test_an_approval_for_the_chat_runs_later_calls_of_the_tool_without_a_question(
    desk: Server, clerk: Client, office: Office
) -> None:
    chat = await clerk.chat()
    turn, (first,) = await asked_in(desk, clerk, chat, MAIL)
    assert first["can_remember"]
    await answer(clerk, turn, decision("approve", first, remember=CHAT))
    await finished(clerk, turn)
    (grant,) = (await clerk.json("GET", f"{chat}/grants"))["grants"]
    assert {**grant, "id": "", "created_at": ""} == {
        "id": "",
        "tool": "send_mail",
        "when": None,
        "created_at": "",
        "turn": turn.assistant["id"],
        "tool_use_id": "a",
    }
    model = desk.scripts.model(calls_of(OTHER_MAIL), message_of(text("Done.")))
    second = await clerk.ask(chat, model=model)
    assert office.sent == [("ada", "Hi"), ("bob", "Hi")]
    assert await approval_notes(clerk, second) == [{"decision": "remembered", "grant": grant["id"]}]
    events = await clerk.events(second.stream_url)
    assert "action_required" not in [event.name for event in events]
    # For another tool, or in another chat, the person is asked as before.
    third, (pay,) = await asked_in(desk, clerk, chat, ("pay", {"euros": 1000}, "a"))
    await answer(clerk, third, decision("deny", pay))
    fourth, (mail,) = await asked_for(desk, clerk, MAIL)
    await answer(clerk, fourth, decision("deny", mail))
    await finished(clerk, third)
    await finished(clerk, fourth)
    assert len(office.sent) == 2


async def test_a_revoked_approval_is_asked_for_again(desk: Server, clerk: Client, office: Office) -> None:
    chat = await clerk.chat()
    turn, (first,) = await asked_in(desk, clerk, chat, MAIL)
    await answer(clerk, turn, decision("approve", first, remember=CHAT))
    await finished(clerk, turn)
    (grant,) = (await clerk.json("GET", f"{chat}/grants"))["grants"]
    for _ in range(2):
        assert await clerk.json("DELETE", f"{chat}/grants/{grant['id']}") == {"revoked": grant["id"]}
    assert await clerk.json("GET", f"{chat}/grants") == {"grants": []}
    second, (again,) = await asked_in(desk, clerk, chat, OTHER_MAIL)
    await answer(clerk, second, decision("deny", again))
    await finished(clerk, second)
    assert office.sent == [("ada", "Hi")]


async def test_a_grant_is_seen_and_revoked_in_its_own_chat_by_its_owner_alone(
    desk: Server, clerk: Client, document: Document
) -> None:
    chat, other = await clerk.chat(), await clerk.chat()
    turn, (first,) = await asked_in(desk, clerk, chat, MAIL)
    await answer(clerk, turn, decision("approve", first, remember=CHAT))
    await finished(clerk, turn)
    (grant,) = (await clerk.json("GET", f"{chat}/grants"))["grants"]
    assert await clerk.json("GET", f"{other}/grants") == {"grants": []}
    await clerk.json("DELETE", f"{other}/grants/{grant['id']}", 404)
    await clerk.json("GET", f"/api/chats/{uuid4()}/grants", 404)
    token = await desk.token("eve")
    async with Client(desk.url, document, token) as eve:
        await eve.json("GET", f"{chat}/grants", 404)
        await eve.json("DELETE", f"{chat}/grants/{grant['id']}", 404)
    async with Client(desk.url, document, await desk.token(clerk.owner)) as ada:
        assert (await ada.json("GET", f"{chat}/grants"))["grants"] == [grant]


async def test_the_audit_trail_names_the_credential_of_the_decision(
    desk: Server, clerk: Client, document: Document
) -> None:
    chat = await clerk.chat()
    turn, (first,) = await asked_in(desk, clerk, chat, MAIL)
    token = await desk.token(clerk.owner)
    async with Client(desk.url, document, token) as phone:
        await answer(phone, turn, decision("approve", first, remember=CHAT))
        await finished(phone, turn)
        (grant,) = (await phone.json("GET", f"{chat}/grants"))["grants"]
        await phone.json("DELETE", f"{chat}/grants/{grant['id']}")
    entries = await newest_entries(desk.services.storage.database, clerk.owner, None, 1, 100)
    mine = [entry for entry in entries if entry.detail.get("chat") == chat.rpartition("/")[2]]
    assert [entry.kind for entry in mine] == ["grant.revoked", "grant.given", "approval.given"]
    assert {entry.actor for entry in mine} == {f"token:{UUID(token.split('_')[1])}"}
    assert mine[-1].detail["input_digest"] == first["input_digest"]


async def test_a_condition_limits_an_approval_to_inputs_that_meet_it(
    desk: Server, clerk: Client, office: Office
) -> None:
    chat, when = await clerk.chat(), {"to": {"const": "ada"}}
    turn, (first,) = await asked_in(desk, clerk, chat, MAIL)
    await answer(clerk, turn, decision("approve", first, remember={**CHAT, "when": when}))
    await finished(clerk, turn)
    assert [grant["when"] for grant in (await clerk.json("GET", f"{chat}/grants"))["grants"]] == [when]
    second, (bob,) = await asked_in(
        desk,
        clerk,
        chat,
        ("send_mail", {"to": "ada", "words": "Bye"}, "b"),
        ("send_mail", {"to": "bob", "words": ""}, "c"),
    )
    assert bob["tool_use_id"] == "c"
    await answer(clerk, second, decision("deny", bob))
    assert [note["decision"] for note in await approval_notes(clerk, second)] == ["remembered", "denied"]
    assert office.sent == [("ada", "Hi"), ("ada", "Bye")]


async def test_other_calls_that_wait_and_that_the_approval_covers_are_allowed_with_it(
    desk: Server, clerk: Client, office: Office
) -> None:
    third = ("send_mail", {"to": "ada", "words": "Again"}, "c")
    turn, (ada, bob, _) = await asked_for(desk, clerk, MAIL, OTHER_MAIL, third)
    remember = {**CHAT, "when": {"to": {"enum": ["ada", "eve"]}}}
    half = await answer(clerk, turn, decision("approve", ada, remember=remember))
    assert [call["tool_use_id"] for call in half["actions"]] == ["b"]
    await answer(clerk, turn, decision("deny", bob))
    await finished(clerk, turn)
    assert sorted(office.sent) == [("ada", "Again"), ("ada", "Hi")]


@pytest.mark.parametrize(
    ("remember", "field"),
    [
        ({"scope": "owner"}, "remember.scope"),
        ({**CHAT, "when": {}}, "remember.when"),
        ({**CHAT, "when": {"to": {}}}, "remember.when.to"),
        ({**CHAT, "when": {"to": {"pattern": "a"}}}, "remember.when.to.pattern"),
        ({**CHAT, "when": {"to": {"const": "bob"}}}, "remember.when"),
        ({**CHAT, "when": {"cc": {"const": "ada"}}}, "remember.when"),
    ],
)
async def test_a_condition_that_makes_no_sense_is_refused(
    desk: Server, clerk: Client, office: Office, remember: dict[str, Any], field: str
) -> None:
    turn, (first,) = await asked_for(desk, clerk, MAIL)
    refused = await answer(clerk, turn, decision("approve", first, remember=remember), expect=422)
    assert [error["field"] for error in refused["errors"]] == [f"actions.0.{field}"]
    assert "known are ." not in refused["detail"]
    await answer(clerk, turn, decision("deny", first))
    await finished(clerk, turn)
    assert office.sent == []


async def test_a_tool_whose_calls_are_all_asked_about_cannot_be_allowed_for_the_chat(
    desk: Server, clerk: Client, office: Office
) -> None:
    chat = await clerk.chat()
    turn, (wanted,) = await asked_in(desk, clerk, chat, ("wire", {"euros": 5}, "a"))
    assert not wanted["can_remember"]
    refused = await answer(clerk, turn, decision("approve", wanted, remember=CHAT), expect=422)
    assert refused["errors"][0]["field"] == "actions.0.remember"
    await answer(clerk, turn, decision("approve", wanted))
    await finished(clerk, turn)
    assert await clerk.json("GET", f"{chat}/grants") == {"grants": []}
    assert office.sent == [("bank", "5")]


async def test_a_chat_has_so_many_grants_and_no_two_equal_ones(desk: Server, clerk: Client) -> None:
    chat = await clerk.chat()
    turn, (first, second) = await asked_in(desk, clerk, chat, MAIL, OTHER_MAIL)
    remember = {**CHAT, "when": {"words": {"const": "Hi"}}}
    await answer(
        clerk, turn, decision("approve", first, remember=remember), decision("approve", second, remember=remember)
    )
    await finished(clerk, turn)
    assert len((await clerk.json("GET", f"{chat}/grants"))["grants"]) == 1
    connection = await asyncpg.connect(desk.database_url)
    await connection.execute(
        """
        INSERT INTO grants (id, chat_id, tool, digest, turn_id, tool_use_id)
        SELECT gen_random_uuid(), chat_id, tool, number::text, turn_id, tool_use_id
        FROM grants, generate_series(2, 100) AS number WHERE chat_id = $1
        """,
        chat.rpartition("/")[2],
    )
    await connection.close()
    last, (pay,) = await asked_in(desk, clerk, chat, ("pay", {"euros": 1000}, "a"))
    refused = await answer(clerk, last, decision("approve", pay, remember=CHAT), expect=422)
    assert "revoke some" in refused["detail"]
    await answer(clerk, last, decision("deny", pay))
    await finished(clerk, last)


# --- everything that waits -------------------------------------------------------------------------------------------


async def test_waiting_calls_of_all_chats_are_listed_by_age_in_pages(
    desk: Server, clerk: Client, document: Document
) -> None:
    long = "x" * 500
    first, (mail, _) = await asked_for(desk, clerk, ("send_mail", {"to": "ada", "words": long}, "a"), OTHER_MAIL)
    model = desk.scripts.model(calls_of(("findNodes", CATS, "c")), message_of(text("Done.")))
    second = await clerk.say(await clerk.chat(title="Cats"), model=model, tools=[FIND])
    await until_asked(clerk, second)
    whole = await clerk.json("GET", "/api/waiting")
    assert [(call["turn"], call["tool_use_id"], call["name"], call["type"]) for call in whole["calls"]] == [
        (first.assistant["id"], "a", "send_mail", "approval"),
        (first.assistant["id"], "b", "send_mail", "approval"),
        (second.assistant["id"], "c", "findNodes", "client"),
    ]
    assert (whole["count"], whole["next"]) == (3, None)
    assert [call["since"] for call in whole["calls"]] == sorted(call["since"] for call in whole["calls"])
    assert whole["calls"][0]["input"].endswith("x…")
    assert len(whole["calls"][0]["input"]) == 301
    assert whole["calls"][2] | {"since": ""} == {
        "chat": second.assistant["chat_id"],
        "title": "Cats",
        "turn": second.assistant["id"],
        "tool_use_id": "c",
        "name": "findNodes",
        "type": "client",
        "input": '{"kind":"cat"}',
        "since": "",
        "expires_at": None,
    }
    paged, after = [], None
    while True:
        page = await clerk.json("GET", "/api/waiting", params={"limit": 1, **({"after": after} if after else {})})
        assert page["count"] == 3
        paged += page["calls"]
        after = page["next"]
        if after is None:
            break
    assert paged == whole["calls"]
    async with Client(desk.url, document, await desk.token("eve")) as eve:
        assert await eve.json("GET", "/api/waiting") == {"calls": [], "count": 0, "next": None}
    await answer(clerk, first, decision("deny", mail))
    assert [call["tool_use_id"] for call in (await clerk.json("GET", "/api/waiting"))["calls"]] == ["b", "c"]
    for turn in (first, second):
        await clerk.json("POST", f"{turn.url}/cancel", 202)
    assert (await clerk.json("GET", "/api/waiting"))["count"] == 0


@pytest.mark.parametrize("after", ["x", "bnVsbA", "W10", "WzEsMl0"])
async def test_a_place_in_the_list_that_no_page_gave_is_refused(clerk: Client, after: str) -> None:
    refused = await clerk.json("GET", "/api/waiting", 400, params={"after": after})
    assert "`after` must be the `next` of an earlier page" in refused["detail"]


async def test_the_feed_says_how_many_calls_of_a_turn_wait(desk: Server, clerk: Client) -> None:
    async with clerk.follow("/api/stream") as events:
        turn, (first, second) = await asked_for(desk, clerk, MAIL, OTHER_MAIL)
        seen: list[int] = []
        decisions = iter([first, second])
        async for event in events:
            if event.name != "turn" or event.data["turn"] != turn.assistant["id"]:
                continue
            if event.data["waiting"] != (seen[-1] if seen else None):
                seen.append(event.data["waiting"])
                if event.data["waiting"]:
                    await answer(clerk, turn, decision("deny", next(decisions)))
            if event.data["status"] == "complete":
                break
    assert seen[-3:] == [2, 1, 0]


async def test_a_call_without_an_answer_expires(desk: Server, clerk: Client, office: Office) -> None:
    model = desk.scripts.model(calls_of(("launch", {}, "a")), message_of(text("No launch.")))
    turn = await clerk.ask(await clerk.chat(), model=model)
    assert results_of(turn.assistant) == {"a": ("This call was not run: nobody answered in time.", True)}
    assert office.sent == []


async def test_a_call_of_a_program_is_nobodys_work_and_ends_its_turn_when_it_expires(
    desk: Server, clerk: Client
) -> None:
    model, provider = desk.scripts.provider(calls_of(("findNodes", {}, "c")), message_of(text("Never said.")))
    turn = await clerk.say(await clerk.chat(), model=model, tools=[{**FIND, "expiry": 3600}])
    await until_waiting(clerk, turn)
    assert await clerk.json("GET", "/api/waiting") == {"calls": [], "count": 0, "next": None}
    connection = await asyncpg.connect(desk.database_url)
    await connection.execute("UPDATE asks SET expires_at = now() WHERE name = 'findNodes' AND expires_at IS NOT NULL")
    await connection.close()
    assert (await finished(clerk, turn))["status"] == "cancelled"
    assert len(provider.requests) == 1


async def test_an_answer_that_comes_too_late_is_refused(desk: Server, clerk: Client, office: Office) -> None:
    turn, (wanted,) = await asked_for(desk, clerk, MAIL)
    await until_waiting(clerk, turn)
    connection = await asyncpg.connect(desk.database_url)
    async with connection.transaction():  # the transaction is open, so that no other session sees the expiry yet
        await connection.execute("UPDATE asks SET expires_at = now() - interval '1 minute'")
    await connection.close()
    response = await clerk.request("POST", f"{turn.url}/actions", json={"actions": [decision("approve", wanted)]})
    assert (response.status_code, response.json()["code"]) == (409, "call_over")
    await finished(clerk, turn)
    assert office.sent == []


async def test_whether_a_tool_needs_leave_is_listed(clerk: Client) -> None:
    tools = (await clerk.json("GET", "/api/tools"))["tools"]
    assert {tool["name"]: tool["approval"] for tool in tools} == {
        "send_mail": "always",
        "pay": "by_input",
        "wire": "always",
        "launch": "always",
    }


# --- while the model talks ---------------------------------------------------------------------------------------


@dataclass
class Gate:
    pause: Pause = field(default_factory=Pause)

    @tool()
    async def dig(self) -> str:
        """Digs until a stop."""
        self.pause.reached.set()
        await self.pause.go.wait()
        return "a hole"


def words_to(request: ModelRequest) -> list[str]:
    return [block.text for message in request.messages for block in message.blocks if message.role == "user"]


async def test_a_message_during_a_round_is_added_with_the_results_of_its_tools(
    database_url: str, document: Document
) -> None:
    gate = Gate()
    async with serving(database_url, Toolset(tools_of(gate))) as server, Client(server.url, document) as api:
        model, provider = server.scripts.provider(calls_of(("dig", {}, "a")), message_of(text("Stopped.")))
        chat = await api.chat()
        turn = await api.say(chat, "Dig", model=model)
        await gate.pause.reached.wait()
        key = {"Idempotency-Key": str(uuid4())}
        for _ in range(2):
            steered = await api.json(
                "POST", f"{chat}/turns", 202, json={**said("Not so deep"), "on_busy": "steer"}, headers=key
            )
            assert (steered["user_turn"], steered["steered"]) == (None, True)
            assert steered["assistant_turn"]["id"] == turn.assistant["id"]
        gate.pause.go.set()
        ended = await finished(api, turn)
        assert [block["type"] for block in ended["blocks"]] == ["tool_use", "tool_result", "user_text", "text"]
        assert words_to(provider.requests[-1]) == ["Dig", "a hole", "Not so deep"]


async def test_a_message_during_the_last_round_is_answered_too(api: Client, server: Server) -> None:
    pause = Pause()
    first = list(message_of(text("All ", "done.")))
    model = server.scripts.model([*first[:3], pause, *first[3:]], message_of(text("You are welcome.")))
    chat = await api.chat()
    turn = await api.say(chat, model=model)
    await pause.reached.wait()
    await api.json("POST", f"{chat}/turns", 202, json={**said("Thanks"), "on_busy": "steer"})
    pause.go.set()
    ended = await finished(api, turn)
    assert [block["text"] for block in ended["blocks"]] == ["All done.", "Thanks", "You are welcome."]


async def test_a_message_instead_of_an_answer_settles_the_call(desk: Server, clerk: Client, office: Office) -> None:
    turn, _ = await asked_for(desk, clerk, MAIL)
    await until_waiting(clerk, turn)
    chat = turn.url.rpartition("/turns/")[0]
    refused = await clerk.json("POST", f"{chat}/turns", 409, json=said("Wait"))
    assert refused["code"] == "turn_waiting"
    await clerk.json("POST", f"{chat}/turns", 202, json={**said("Wait"), "on_busy": "steer"})
    ended = await finished(clerk, turn)
    assert results_of(ended)["a"][0].startswith("This call was not run: the user said something else")
    assert words_of(ended) == "Done."
    assert office.sent == []


async def paused(api: Client, server: Server, chat: str) -> tuple[Said, Pause]:
    pause = Pause()
    first = list(message_of(text("One ", "two.")))
    turn = await api.say(chat, "First", model=server.scripts.model([*first[:3], pause, *first[3:]]))
    await pause.reached.wait()
    return turn, pause


async def test_an_enqueued_message_runs_next(api: Client, server: Server) -> None:
    chat = await api.chat()
    turn, pause = await paused(api, server, chat)
    model, provider = server.scripts.provider(message_of(text("Second.")), message_of(text("Third.")))
    next_one = await api.say(chat, "Second?", model=model, on_busy="enqueue")
    third = await api.say(chat, "Third?", model=model, on_busy="enqueue")
    assert (next_one.user["parent_id"], next_one.assistant["status"]) == (turn.assistant["id"], "queued")
    pause.go.set()
    ended = await finished(api, third)
    assert words_of(ended) == "Third."
    assert words_to(provider.requests[-1]) == ["First", "Second?", "Third?"]


async def test_an_interrupted_turn_keeps_its_words_and_the_next_one_runs(api: Client, server: Server) -> None:
    chat = await api.chat()
    turn, _ = await paused(api, server, chat)
    waiting = await api.say(chat, "Second?", on_busy="enqueue")
    third = await api.say(chat, "Third!", on_busy="interrupt", model="plain")
    assert (await finished(api, third))["status"] == "complete"
    stopped = await api.json("GET", turn.url)
    assert (stopped["status"], words_of(stopped)) == ("cancelled", "One ")
    assert (await api.json("GET", waiting.url))["status"] == "cancelled"


async def test_a_branch_runs_beside_as_a_sibling(api: Client, server: Server) -> None:
    chat = await api.chat()
    before = await api.ask(chat, "Hello")
    turn, pause = await paused(api, server, chat)
    other = await api.say(chat, "Or this?", on_busy="branch", model="plain")
    assert (other.user["parent_id"], turn.user["parent_id"]) == (before.assistant["id"], before.assistant["id"])
    assert (await finished(api, other))["status"] == "complete"
    assert (await api.json("GET", turn.url))["status"] == "running"
    pause.go.set()
    await finished(api, turn)


async def test_a_turn_queued_behind_another_is_cancelled_with_the_order_kept(api: Client, server: Server) -> None:
    chat = await api.chat()
    turn, pause = await paused(api, server, chat)
    behind = await api.say(chat, "Second?", on_busy="enqueue")
    held = await api.json("POST", f"{behind.url}/cancel", 202)
    assert held["status"] == "queued"
    pause.go.set()
    assert (await finished(api, behind))["status"] == "cancelled"
    assert (await api.json("GET", turn.url))["status"] == "complete"

"""Posts of messages, and reads of turns."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support.http_client import Client, assembled, said, turn_url, words_of
from tests.support.http_server import Server, pausing
from tests.support.locks import Locker
from turnstream.domain.errors import PermanentError
from turnstream.llm.provider import BlockText, Part
from turnstream.scripted import Pause, message_of, text, thinking, tool_use
from turnstream.storage.chats.chat_changes import ChatState, ChatUpdates

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_message_is_answered_with_both_turns_and_the_stream(api: Client) -> None:
    chat = await api.chat()
    posted = await api.post(f"{chat}/turns", json=said("Hi"))
    user, assistant = posted.json()["user_turn"], posted.json()["assistant_turn"]
    assert posted.status_code == 201
    assert posted.json()["stream_url"] == f"{turn_url(assistant)}/stream"
    assert posted.headers["location"] == turn_url(assistant)
    assert (user["role"], user["status"], user["parent_id"], words_of(user)) == ("user", "complete", None, "Hi")
    assert (assistant["role"], assistant["parent_id"]) == ("assistant", user["id"])
    assert assistant["status"] in {"queued", "running"}
    assert user["cursor"] is None


@pytest.mark.extensions("documents")
async def test_the_answer_can_be_read_with_its_rounds_and_usage(api: Client, server: Server) -> None:
    model = server.scripts.model(
        message_of(thinking("Hm"), tool_use("doc_tree", {}, "call_1"), usage={"output_tokens": 7}),
        message_of(text("Nothing ", "there."), usage={"output_tokens": 5}),
    )
    turn = (await api.ask(await api.chat(), model=model)).assistant
    assert [block["type"] for block in turn["blocks"]] == ["thinking", "tool_use", "tool_result", "text"]
    thought, call, result, answer = turn["blocks"]
    assert (thought["text"], thought["signature"]) == ("Hm", "scripted")
    assert (call["id"], call["name"], call["input"]) == ("call_1", "doc_tree", {})
    assert (result["tool_use_id"], result["name"], result["is_error"]) == ("call_1", "doc_tree", False)
    assert answer["text"] == "Nothing there."
    assert (turn["status"], turn["stop_reason"], turn["model"]) == ("complete", "end_turn", model)
    assert [(round["round"], round["stop_reason"]) for round in turn["rounds"]] == [(1, "tool_use"), (2, "end_turn")]
    assert turn["usage"] == {"input_tokens": 20, "output_tokens": 12}


async def test_an_input_that_cannot_be_encoded_again_is_shown_as_its_text(api: Client, server: Server) -> None:
    inputs = ["{", '{"a":' * 300 + "1" + "}" * 300, '{"a":' * 2000 + "1" + "}" * 2000, '{"a":NaN}']
    calls = [written(f"call_{number}", text) for number, text in enumerate(inputs)]
    model = server.scripts.model(message_of(*calls, written("big", '{"a":' + "9" * 50 + "}")), message_of(text("So.")))
    turn = await api.ask(await api.chat(), model=model)
    shown = [block["input"] for block in turn.assistant["blocks"] if block["type"] == "tool_use"]
    assert shown == [*inputs, {"a": int("9" * 50)}]
    stops = [event.data for event in await api.events(turn.stream_url) if event.name == "block_stop"]
    assert [stop["input"] for stop in stops if "input" in stop] == shown


def written(call: str, input: str) -> list[Part]:
    """Returns the parts of a call whose input is this text, which may be broken JSON as a model can write it."""
    opened, *_, closed = tool_use("doc_tree", {}, call)
    return [opened, BlockText(0, input), closed]


async def test_a_turn_that_failed_says_why(api: Client, server: Server) -> None:
    model = server.scripts.model([PermanentError("authentication_error", "bad key", request_id="req_1")])
    turn = (await api.ask(await api.chat(), model=model)).assistant
    assert (turn["status"], turn["stop_reason"]) == ("error", "error")
    assert turn["error"] == {
        "type": "authentication_error",
        "message": "bad key",
        "request_id": "req_1",
        "details": None,
    }


async def test_the_first_words_of_a_chat_can_make_it(api: Client) -> None:
    body = {**said("Hi"), "chat": {"title": "New", "settings": {"limits": {"max_rounds": 1}}}}
    made = await api.json("POST", "/api/turns", 201, json=body)
    chat = await api.json("GET", f"/api/chats/{made['user_turn']['chat_id']}")
    assert (chat["title"], chat["settings"]) == ("New", {"limits": {"max_rounds": 1}})


@pytest.mark.parametrize("where", ["/api/turns", "chat", "regenerate"])
async def test_a_client_that_accepts_a_stream_gets_it_from_the_same_request(api: Client, where: str) -> None:
    path = where
    if where != "/api/turns":
        chat = await api.chat()
        path = f"{chat}/turns" if where == "chat" else f"{(await api.ask(chat)).url}/regenerate"
    accept = {"Accept": "text/event-stream"}
    streamed = await api.post(path, headers=accept, json={} if where == "regenerate" else said("Hi"))
    assert streamed.status_code == 200
    assert streamed.text.startswith("retry: ")
    assert streamed.text.count("event: turn_start\n") == streamed.text.count("event: turn_complete\n") == 1


@pytest.mark.extensions("documents")
async def test_settings_go_from_the_server_to_the_chat_to_the_turn(api: Client, server: Server) -> None:
    model, provider = server.scripts.provider(*[list(message_of(text("Yes."))) for _ in range(3)])
    settings = {"model": model, "params": {"max_tokens": 5, "thinking": {"type": "disabled"}}, "tools": ["doc_view"]}
    chat = await api.chat(system_prompt="Be brief.", settings=settings)
    await api.ask(chat)
    await api.ask(chat, params={"max_tokens": 9}, tools=[], system_prompt="Be long.")
    await api.ask(chat)
    first, second, third = provider.requests
    assert (first.system, [tool.name for tool in first.tools]) == ("Be brief.", ["doc_view"])
    assert first.params == {"max_tokens": 5, "thinking": {"type": "disabled"}}
    assert (second.system, second.tools) == ("Be long.", ())
    assert second.params == {"max_tokens": 9, "thinking": {"type": "disabled"}}
    assert (third.system, third.params) == ("Be brief.", first.params)


# --- the tree --------------------------------------------------------------------------------------------------------


async def test_the_path_goes_from_the_root_to_the_newest_turn(api: Client) -> None:
    chat = await api.chat()
    assert await api.json("GET", f"{chat}/turns") == {"turns": [], "next": None, "following": None, "cursor": "0.."}
    one, two = await api.ask(chat, "One"), await api.ask(chat, "Two")
    path = await api.json("GET", f"{chat}/turns")
    assert [turn["id"] for turn in path["turns"]] == [
        turn["id"] for turn in (one.user, one.assistant, two.user, two.assistant)
    ]
    assert [turn["siblings"] for turn in path["turns"]] == [[turn["id"]] for turn in path["turns"]]
    assert path["next"] is None


async def test_a_long_path_comes_in_pages_the_newest_first(api: Client) -> None:
    chat = await api.chat()
    ids: list[str] = []
    for number in range(3):
        turn = await api.ask(chat, str(number))
        ids += [turn.user["id"], turn.assistant["id"]]
    pages, query = [], {"limit": "4"}
    while True:
        page = await api.json("GET", f"{chat}/turns", params=query)
        pages.append([turn["id"] for turn in page["turns"]])
        if page["next"] is None:
            break
        query["leaf"] = page["next"]
    assert pages == [ids[2:], ids[:2]]


async def ids_on(api: Client, chat: str, **query: Any) -> tuple[list[str], str | None]:
    page = await api.json("GET", f"{chat}/turns", params=query)
    return [turn["id"] for turn in page["turns"]], page["following"]


async def test_a_path_is_read_forwards_and_backwards_from_any_turn(api: Client) -> None:
    chat = await api.chat()
    ids: list[str] = []
    for number in range(4):
        turn = await api.ask(chat, str(number))
        ids += [turn.user["id"], turn.assistant["id"]]
    other = await api.ask(chat, "Beside", parent_id=ids[3])
    branch = [*ids[:4], other.user["id"], other.assistant["id"]]
    assert await ids_on(api, chat, after=ids[1], leaf=ids[7], limit=4) == (ids[2:6], ids[5])
    assert await ids_on(api, chat, after=ids[5], limit=4) == (ids[6:], None)
    assert await ids_on(api, chat, after=ids[1]) == (branch[2:], None)
    assert await ids_on(api, chat, after=ids[7]) == ([], None)
    assert await ids_on(api, chat, before=ids[6], limit=4) == (ids[2:6], ids[5])
    assert await ids_on(api, chat, before=ids[1]) == (ids[:1], ids[0])
    assert await ids_on(api, chat, before=ids[0]) == ([], None)
    forwards, after = [ids[0]], ids[0]
    while after:
        page, following = await ids_on(api, chat, after=after, leaf=ids[7], limit=3)
        forwards, after = forwards + page, following or ""
    assert forwards == ids
    children = await api.json("GET", f"{chat}/turns/{ids[3]}/children")
    assert [turn["id"] for turn in children["turns"]] == [ids[4], other.user["id"]]
    refused = await api.json("GET", f"{chat}/turns", 422, params={"after": other.user["id"], "leaf": ids[7]})
    assert "is not on it" in refused["errors"][0]["message"]
    await api.json("GET", f"{chat}/turns", 422, params={"after": ids[1], "before": ids[7]})
    await api.json("GET", f"{chat}/turns", 404, params={"before": str(uuid4())})


async def test_a_newest_turn_that_is_deleted_while_its_path_is_read_is_left_out(
    api: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = await api.chat()
    first, second = await api.ask(chat, "One"), await api.ask(chat, "Two")
    state = ChatUpdates.state

    async def late(self: ChatUpdates, chat_id: UUID) -> ChatState:
        found = await state(self, chat_id)
        if found.newest == UUID(second.assistant["id"]):
            await api.json("DELETE", second.user_url)
        return found

    monkeypatch.setattr(ChatUpdates, "state", late)
    assert await ids_on(api, chat) == ([first.user["id"], first.assistant["id"]], None)


async def test_words_are_edited_by_saying_others_after_the_same_answer(api: Client) -> None:
    chat = await api.chat()
    first = await api.ask(chat, "First")
    old = await api.ask(chat, "Old")
    new = await api.ask(chat, "New", parent_id=first.assistant["id"])
    siblings = await api.json("GET", f"{new.user_url}/siblings")
    assert [words_of(turn) for turn in siblings["turns"]] == ["Old", "New"]
    newest = await api.json("GET", f"{chat}/turns")
    assert [words_of(turn) for turn in newest["turns"]] == ["First", "Hello.", "New", "Hello."]
    assert newest["turns"][2]["siblings"] == [old.user["id"], new.user["id"]]
    older = await api.json("GET", f"{chat}/turns?leaf={old.assistant['id']}")
    assert [words_of(turn) for turn in older["turns"]] == ["First", "Hello.", "Old", "Hello."]
    assert await api.json("GET", f"{old.url}/path") == older


async def test_the_first_words_are_edited_with_a_parent_of_null(api: Client) -> None:
    chat = await api.chat()
    old = await api.ask(chat, "Old")
    new = await api.ask(chat, "New", parent_id=None)
    assert new.user["parent_id"] is None
    siblings = await api.json("GET", f"{old.user_url}/siblings")
    assert [words_of(turn) for turn in siblings["turns"]] == ["Old", "New"]


async def test_an_answer_is_generated_again_beside_the_old_one_by_the_same_request(api: Client, server: Server) -> None:
    model, provider = server.scripts.provider(message_of(text("One.")), message_of(text("Two.")))
    chat = await api.chat()
    old = await api.ask(chat, model=model, params={"max_tokens": 9}, system_prompt="Be brief.")
    new = await api.json("POST", f"{old.url}/regenerate", 201)
    await api.events(new["stream_url"])
    assert new["user_turn"]["id"] == old.user["id"]
    siblings = await api.json("GET", f"{old.url}/siblings")
    assert [words_of(turn) for turn in siblings["turns"]] == ["One.", "Two."]
    first, second = provider.requests
    assert (first.system, first.params, first.messages) == (second.system, second.params, second.messages)


async def test_an_answer_can_be_generated_again_by_another_model(api: Client, server: Server) -> None:
    old = await api.ask(await api.chat())
    model = server.scripts.model(message_of(text("Otherwise.")))
    new = await api.json("POST", f"{old.url}/regenerate", 201, json={"model": model})
    await api.events(new["stream_url"])
    assert words_of(await api.json("GET", turn_url(new["assistant_turn"]))) == "Otherwise."


async def test_a_user_turn_cannot_be_generated_again(api: Client) -> None:
    await api.json("POST", f"{(await api.ask(await api.chat())).user_url}/regenerate", 409)


# --- one running turn for each branch --------------------------------------------------------------------------------


async def test_while_a_turn_runs_no_message_can_follow_it(api: Client, server: Server) -> None:
    pause = Pause()
    chat = await api.chat()
    earlier = await api.ask(chat, "Earlier")
    running = await api.say(chat, model=server.scripts.model(pausing(pause, "One ", "two.")))
    await pause.reached.wait()
    await api.json("POST", f"{chat}/turns", 409, json=said("More"))
    await api.json("POST", f"{chat}/turns", 409, json={**said("More"), "parent_id": running.assistant["id"]})
    await api.json("POST", f"{running.url}/regenerate", 409)
    elsewhere = await api.ask(chat, "Elsewhere", parent_id=earlier.assistant["id"])
    assert elsewhere.assistant["status"] == "complete"
    pause.go.set()
    await api.events(running.stream_url)
    await api.json("POST", f"{chat}/turns", 201, json={**said("More"), "parent_id": running.assistant["id"]})


async def test_of_two_that_speak_at_once_exactly_one_is_heard(api: Client, database: Locker, server: Server) -> None:
    chat, models = await api.chat(), [server.scripts.model(pausing(Pause(), "One ", "two.")) for _ in range(2)]
    identity = UUID(chat.rpartition("/")[2])
    async with database.holding("SELECT FROM chats WHERE id = $1 FOR UPDATE", identity):
        both = [asyncio.create_task(api.post(f"{chat}/turns", json={**said("Hi"), "model": each})) for each in models]
        await database.waiting(2)
    assert sorted(answer.status_code for answer in await asyncio.gather(*both)) == [201, 409]
    assert len((await api.json("GET", f"{chat}/turns"))["turns"]) == 2
    await api.json("DELETE", chat)


async def test_of_two_regenerations_at_once_exactly_one_is_made(api: Client, database: Locker, server: Server) -> None:
    turn = await api.ask(await api.chat())
    chat, identity = turn.url.partition("/turns")[0], UUID(turn.assistant["chat_id"])
    model = server.scripts.model(pausing(Pause(), "One ", "two."))
    async with database.holding("SELECT FROM chats WHERE id = $1 FOR UPDATE", identity):
        again = [asyncio.create_task(api.post(f"{turn.url}/regenerate", json={"model": model})) for _ in range(2)]
        await database.waiting(2)
    assert sorted(answer.status_code for answer in await asyncio.gather(*again)) == [201, 409]
    await api.json("DELETE", chat)


async def test_a_running_turn_shows_its_text_and_a_cursor_behind_it(api: Client, server: Server) -> None:
    message = list(message_of(thinking("H", "m"), text("One ", "two.")))
    for place in range(len(message) + 1):
        pause = Pause()
        model = server.scripts.model([*message[:place], pause, *message[place:]])
        turn = await api.say(await api.chat(), model=model)
        await pause.reached.wait()
        shown = await api.json("GET", turn.url)
        assert shown["status"] == "running"
        async with api.follow(turn.stream_url, shown["cursor"]) as events:
            pause.go.set()
            texts = assembled([block["text"] for block in shown["blocks"]], [event async for event in events])
        assert texts == ["Hm", "One two."]


async def test_the_block_that_is_being_written_says_so(api: Client, server: Server) -> None:
    pause = Pause()
    turn = await api.say(await api.chat(), model=server.scripts.model(pausing(pause, "One ", "two.")))
    await pause.reached.wait()
    shown = await api.json("GET", turn.url)
    assert [(block["type"], block["text"], block["open"]) for block in shown["blocks"]] == [("text", "One ", True)]
    pause.go.set()
    await api.events(turn.stream_url)
    assert "open" not in (await api.json("GET", turn.url))["blocks"][0]


async def test_a_turn_or_chat_that_is_not_there_is_not_found(api: Client) -> None:
    turn = await api.ask(await api.chat())
    chat, other = turn.url.partition("/turns")[0], await api.chat()
    for missing in (f"{chat}/turns/{uuid4()}", f"{chat}/turns/x", f"{other}/turns/{turn.assistant['id']}"):
        for path in ("", "/path", "/siblings", "/stream"):
            await api.json("GET", missing + path, 404)
        for path in ("/cancel", "/regenerate"):
            await api.json("POST", missing + path, 404)
    await api.json("GET", f"{other}/turns?leaf={turn.assistant['id']}", 404)
    for missing in (f"/api/chats/{uuid4()}", "/api/chats/x", "/api/chats/%00"):
        await api.json("GET", f"{missing}/turns", 404)
        await api.json("POST", f"{missing}/turns", 404, json=said("Hi"))


async def test_settings_that_change_while_a_message_waits_for_its_chat_hold_for_it(
    api: Client, server: Server, database: Locker
) -> None:
    """The request is resolved before the transaction, and again inside the transaction if the chat has changed."""
    chat, model = await api.chat(), server.scripts.model(message_of(text("Hi.")))
    change = "UPDATE chats SET settings = json_build_object('model', $2::text) WHERE id = $1"
    async with database.holding(change, UUID(chat.rpartition("/")[2]), model, commit=True):
        posting = asyncio.create_task(api.json("POST", f"{chat}/turns", 201, json=said("Hi")))
        await database.waiting()
    posted = await posting
    assert posted["assistant_turn"]["model"] == model
    assert len((await api.json("GET", f"{chat}/turns"))["turns"]) == 2


async def test_a_message_behind_an_answer_that_was_just_begun_inherits_from_that_one(
    api: Client, server: Server, database: Locker
) -> None:
    chat, models = await api.chat(), [server.scripts.model(*[message_of(text("Hi."))] * 2) for _ in range(2)]
    await api.ask(chat, model=models[0])
    lock = "SELECT FROM chats WHERE id = $1 FOR UPDATE"
    async with database.holding(lock, UUID(chat.rpartition("/")[2])):
        first = asyncio.create_task(
            api.json("POST", f"{chat}/turns", 201, json={**said("One"), "model": models[1], "on_busy": "enqueue"})
        )
        await database.waiting(1)
        second = asyncio.create_task(api.json("POST", f"{chat}/turns", 201, json={**said("Two"), "on_busy": "enqueue"}))
        await database.waiting(2)
    assert (await first)["assistant_turn"]["model"] == models[1]
    exchange = await second
    assert exchange["user_turn"]["parent_id"] == (await first)["assistant_turn"]["id"]
    assert exchange["assistant_turn"]["model"] == models[1]

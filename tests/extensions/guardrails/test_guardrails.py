"""Guardrails that a file declares, over real sockets, in the native API and in every dialect."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from anthropic import AnthropicError, AsyncAnthropic
from openai import AsyncOpenAI, OpenAIError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.http_client import Client
from tests.support.http_server import Server, answering, pausing, serving
from tests.support.pages import blocks
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extensions.demo import EXTENSION as DEMO
from turnstream.extensions.guardrails import EXTENSION
from turnstream.extensions.guardrails.declared import read_guardrails
from turnstream.extensions.guardrails.remote import RulingIn
from turnstream.libraries.guards.guard import EndTurn, Mask, Pass, Passage, TakeBack, TextSpan
from turnstream.libraries.outgoing.signature import verify
from turnstream.llm.models.catalog import ProviderModels
from turnstream.main import running
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text, thinking, tool_use
from turnstream.setup.parts import Given
from turnstream.storage.database import Statement
from turnstream.tools.tool import tool
from turnstream.tools.toolset import Toolset

pytestmark = pytest.mark.extensions(
    "guardrails", "openai_api", "anthropic_api", "ai_sdk", "ag_ui", "archives", "search"
)

PAGE = "docs/guardrails.md"
SECRET = "whsec_c2VjcmV0IG9mIHRoZSBjaGVjaw=="
CARD = "4111 1111 1111 1111"
PATTERNS = '[guardrails.secrets]\non = ["input", "tool_result", "text", "thinking"]\npatterns = ["keys", "cards"]\n'
CHARGES = Statement("SELECT kind, owner, turn_id FROM charges WHERE kind = 'guard'")
STORED = Statement(
    "SELECT text FROM blocks UNION ALL SELECT text FROM open_text UNION ALL SELECT pieces FROM journal_ticks"
)


@dataclass
class Checker:
    """An HTTP server that checks texts. `judge` returns the server's answer to a text, or None if the server does not
    answer.
    """

    judge: Callable[[dict[str, Any]], object] = lambda _: {"verdict": "pass"}
    url: str = ""
    status: int = 200
    asked: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    async def answer(self, request: Request) -> Response:
        body = await request.body()
        self.asked.append((dict(request.headers), body))
        answer = self.judge(json.loads(body))
        if answer is None:
            await asyncio.Event().wait()
        return JSONResponse(answer, self.status)

    @property
    def texts(self) -> list[str]:
        return [json.loads(body)["data"]["text"] for _, body in self.asked]


@asynccontextmanager
async def checking(judge: Callable[[dict[str, Any]], object]) -> AsyncIterator[Checker]:
    checker = Checker(judge)
    async with answering(Starlette(routes=[Route("/check", checker.answer, methods=["POST"])])) as url:
        checker.url = f"{url}/check"
        yield checker


@asynccontextmanager
async def guarded(
    database_url: str, tmp_path: Path, declared: str, **more: Any
) -> AsyncIterator[tuple[Server, Client]]:
    file = tmp_path / "guardrails.toml"
    file.write_text(declared, encoding="utf-8")
    async with serving(database_url, guardrails_file=file, **more) as server, Client(server.url) as api:
        yield server, api


def verdict(word: str, ruling: dict[str, Any]) -> Callable[[dict[str, Any]], object]:
    return lambda asked: ruling if word in asked["data"]["text"] else {"verdict": "pass", "undecided": 0}


async def stored(server: Server) -> str:
    return "\n".join(row["text"] or "" for row in await server.services.storage.database.rows(STORED))


def text_of(turn: dict[str, Any]) -> str:
    return "".join(block.get("text") or "" for block in turn["blocks"] if block["type"] == "text")


# --- the file --------------------------------------------------------------------------------------------------------


def declared_in(tmp_path: Path, content: str) -> Path:
    file = tmp_path / "guardrails.toml"
    file.write_text(content, encoding="utf-8")
    return file


def test_the_file_of_the_page_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICY_SECRET", SECRET)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-operator")
    (example,) = blocks(PAGE, "Guardrails", "toml")
    declared = read_guardrails(declared_in(tmp_path, example))
    assert [each.name for each in declared] == ["secrets", "policy", "advice", "moderation"]
    assert (declared[1].secret, declared[3].key) == (SECRET, "sk-of-the-operator")
    assert declared[2].table.then == TakeBack("I cannot give medical advice.")
    assert declared[3].table.then == EndTurn("This message cannot be answered here.", take_back=True)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('[guardrails.a]\npatterns = ["keys"]\n', "guardrails.a.on is required"),
        ('[guardrails.a]\non = ["texts"]\npatterns = ["keys"]\n', "guardrails.a.on.0 must be 'input', 'tool_result'"),
        ('[guardrails.a]\non = ["text"]\n', "must have one of patterns, url, rule, moderation, and has none"),
        ('[guardrails.a]\non = ["text"]\nurl = "x"\npatterns = ["keys"]\n', "and has patterns and url"),
        ('[guardrails.a]\non = ["text"]\nrule = "x"\n', "must have both `rule` and `model`"),
        ('[guardrails.a]\non = ["text"]\nurl = "x"\naction = "end"\n', "the server that checks decides"),
        ('[guardrails.a]\non = ["text"]\npatterns = ["keys"]\naction = "retract"\n', "it must be mask or end"),
        ('[guardrails.a]\non = ["text"]\nurl = "$NOT_SET_HERE"\n', "`url` names $NOT_SET_HERE, which is not set"),
        ('[guardrails.a]\non = ["text"]\nurl = "x"\nsecret = "!"\n', "a signing secret must be base64"),
        ('[guardrails.a]\non = ["text"]\npatterns = ["keys"]\nwindows = 1\n', "[guardrails.a] has no key `windows`"),
        ('[guards.a]\non = ["text"]\n', "write [guardrails.NAME]"),
        ("[guardrails", "TURNSTREAM_GUARDRAILS_FILE"),
    ],
)
def test_a_wrong_file_is_refused_with_the_key_and_the_correct_form(tmp_path: Path, content: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_guardrails(declared_in(tmp_path, content))
    assert problem in str(refused.value)


async def test_a_model_that_the_server_does_not_have_stops_the_start(database_url: str, tmp_path: Path) -> None:
    file = declared_in(tmp_path, '[guardrails.a]\non = ["text"]\nrule = "x"\nmodel = "no-such-model"\n')
    settings = Settings(_env_file=None, database_url=database_url, model="demo", guardrails_file=file)
    with pytest.raises(ConfigError, match=r"guardrails\.a.*no-such-model"):
        async with running(settings, Given(extensions=[EXTENSION, DEMO])):
            pass


async def test_the_guard_of_the_page_hides_the_code_name() -> None:
    (example,) = blocks(PAGE, "Checks", "python")
    page: dict[str, Any] = {}
    exec(compile(example, PAGE, "exec"), page)
    assert await page["GUARD"].check(Passage("text", "It is Bluebird.", "ada")) == Mask([TextSpan(6, 14, "[project]")])
    assert await page["GUARD"].check(Passage("text", "It is.", "ada")) == Pass()
    assert page["CODE_NAMES"].work(None).guards == [page["GUARD"]]


# --- a server that checks --------------------------------------------------------------------------------------------


async def test_a_server_that_checks_gets_a_signed_body_as_on_the_page(database_url: str, tmp_path: Path) -> None:
    body, answer = map(json.loads, blocks(PAGE, "A server that checks", "json"))
    assert RulingIn.model_validate(answer).ruling() == Mask([TextSpan(12, 16, "[code]")])
    async with checking(verdict("4711", answer)) as checker:
        declared = f'[guardrails.policy]\non = ["text", "input"]\nurl = "{checker.url}"\nsecret = "{SECRET}"\n'
        async with guarded(database_url, tmp_path, declared) as (server, api):
            model = server.scripts.model(message_of(text("The code is", " 4711.")))
            said = await api.ask(await api.chat(), "Which code?", model=model)
            assert text_of(said.assistant) == "The code is [code]."
    for headers, sent in checker.asked:
        assert verify(SECRET, headers, sent, now=time.time())
    first, last = (json.loads(sent) for _, sent in checker.asked)
    assert last.keys() == first.keys() == body.keys()
    assert last["data"].keys() == first["data"].keys() == body["data"].keys()
    assert (first["data"]["place"], first["data"]["turn"], first["data"]["text"]) == ("input", None, "Which code?")
    assert (last["data"]["turn"], last["data"]["final"]) == (said.assistant["id"], True)


@pytest.mark.parametrize(
    ("answer", "status"),
    [({"verdict": "maybe"}, 200), ({"verdict": "pass"}, 500), ([], 200), ({"verdict": "pass"}, 302)],
)
async def test_a_server_whose_answer_is_wrong_has_failed(
    database_url: str, tmp_path: Path, answer: object, status: int
) -> None:
    async with checking(lambda _: answer) as checker:
        checker.status = status
        declared = f'[guardrails.policy]\non = ["text"]\nurl = "{checker.url}"\n'
        async with guarded(database_url, tmp_path, declared) as (server, api):
            said = await api.ask(await api.chat(), model=server.scripts.model(message_of(text("Words."))))
            assert said.assistant["error"]["type"] == "guardrail_failed"
            assert text_of(said.assistant) == ""


async def test_a_message_is_refused_with_the_reason_or_with_503_and_not_stored(
    database_url: str, tmp_path: Path
) -> None:
    async with checking(verdict("bad", {"verdict": "end", "reason": "No bad words."})) as checker:
        declared = f'[guardrails.policy]\non = ["input"]\nurl = "{checker.url}"\n'
        async with guarded(database_url, tmp_path, declared) as (_, api):
            chat = await api.chat()
            body = {"blocks": [{"type": "text", "text": "bad"}]}
            refused = await api.json("POST", f"{chat}/turns", 422, json=body)
            assert (refused["code"], refused["detail"]) == ("guardrail", "No bad words.")
            checker.status = 500
            refused = await api.json("POST", f"{chat}/turns", 503, json=body)
            assert (refused["code"], "Try again" in refused["detail"]) == ("unavailable", True)
            assert (await api.json("GET", f"{chat}/turns"))["turns"] == []


# --- models and moderation -------------------------------------------------------------------------------------------


async def test_a_model_that_checks_is_charged_to_the_turn_and_an_unclear_answer_fails(
    database_url: str, tmp_path: Path
) -> None:
    judge = ScriptedProvider([message_of(text(word)) for word in ("PASS", "Pass.", "BLOCK", "Well, I think")])
    declared = (
        '[guardrails.advice]\non = ["text", "input"]\nrule = "No medicine."\nmodel = "judge"\naction = "retract"\n'
        'text = "I cannot say."\n'
    )
    async with guarded(database_url, tmp_path, declared, offers=[ProviderModels(judge, ["judge"])]) as (server, api):
        chat, model = (
            await api.chat(),
            server.scripts.model(message_of(text("Take two.")), message_of(text("Take two."))),
        )
        said = await api.ask(chat, model=model)
        assert text_of(said.assistant) == "Take two."
        blocked = await api.json("POST", f"{chat}/turns", 201, json={"blocks": [{"type": "text", "text": "Hm"}]})
        await api.events(blocked["stream_url"])
        failed = await api.json("POST", f"{chat}/turns", 503, json={"blocks": [{"type": "text", "text": "Hm"}]})
        assert "could not check" in failed["detail"]
        charged = await server.services.storage.database.rows(CHARGES)
        assert len(charged) == 4
        assert {row["owner"] for row in charged} == {"local"}
        assert said.assistant["id"] in {str(row["turn_id"]) for row in charged}
    assert "No medicine." in judge.requests[0].messages[0].blocks[0].text


async def test_the_moderation_api_judges_by_itself_or_by_categories_and_scores(
    database_url: str, tmp_path: Path
) -> None:
    def judge(asked: dict[str, Any]) -> object:
        score = 0.9 if "bad" in asked["input"] else 0.1
        return {
            "results": [
                {
                    "flagged": score > 0.5,
                    "categories": {"violence": score > 0.5},
                    "category_scores": {"violence": score},
                }
            ]
        }

    async with checking(judge) as checker:
        common = f'on = ["input"]\nreason = "No."\nmoderation = {{ key = "k", url = "{checker.url}"'
        declared = (
            f"[guardrails.a]\n{common} }}\n[guardrails.b]\n{common}, categories = ['hate'] }}\n"
            f"[guardrails.c]\n{common}, categories = ['violence'], threshold = 0.95 }}\n"
        )
        async with guarded(database_url, tmp_path, declared) as (_, api):
            chat = await api.chat()
            await api.ask(chat, "good")
            assert len(checker.asked) == 3
            assert checker.asked[0][0]["authorization"] == "Bearer k"
            await api.json("POST", f"{chat}/turns", 422, json={"blocks": [{"type": "text", "text": "bad"}]})
            assert len(checker.asked) == 4, "the first one has decided"


# --- all APIs --------------------------------------------------------------------------------------------------------


@tool(read_only=True)
async def look() -> str:
    """Look."""
    return f"The card is {CARD}."


async def test_no_card_of_a_message_a_result_a_thought_or_an_answer_is_readable_anywhere(
    database_url: str, tmp_path: Path
) -> None:
    toolset = Toolset([look])
    async with guarded(database_url, tmp_path, PATTERNS, toolset=toolset) as (server, api):
        model, provider = server.scripts.provider(
            message_of(thinking("It is ", CARD[:9], CARD[9:]), tool_use("look", {}, "t1")),
            message_of(text("Yours is ", CARD[:4], CARD[4:], ".")),
        )
        chat = await api.chat()
        said = await api.ask(chat, f"Mine is {CARD}.", model=model)
        assert text_of(said.assistant) == "Yours is [card]."
        events = await api.events(said.stream_url)
        read = [str(events), str(said), str(provider.requests)]
        for path in (chat, f"{chat}/turns", "/api/chats", "/api/chats?q=card", f"{chat}/export"):
            response = await api.get(path)
            read.append(response.text)
        read.append(await stored(server))
    assert not any(re.search(r"4111|1111", each) for each in read)
    assert "[card]" in read[0]


@asynccontextmanager
async def sdks(server: Server) -> AsyncIterator[tuple[AsyncOpenAI, AsyncAnthropic]]:
    async with (
        AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as openai,
        AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as anthropic,
    ):
        yield openai, anthropic


async def through_responses(openai: AsyncOpenAI, model: str) -> str:
    shown = ""
    async for event in await openai.responses.create(model=model, input=f"Mine is {CARD}.", stream=True):
        shown = event.response.output_text if event.type in {"response.completed", "response.failed"} else shown
        if event.type == "response.failed":
            assert event.response.error is not None
            return f"{shown}|{event.response.error.message}"
    return shown


async def through_chat(openai: AsyncOpenAI, model: str) -> str:
    shown = ""
    messages: Any = [{"role": "user", "content": f"Mine is {CARD}."}]
    try:
        async for chunk in await openai.chat.completions.create(model=model, messages=messages, stream=True):
            shown += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    except OpenAIError as error:
        return f"{shown}|{error}"
    return shown


async def through_messages(anthropic: AsyncAnthropic, model: str) -> str:
    shown = ""
    messages: Any = [{"role": "user", "content": f"Mine is {CARD}."}]
    try:
        async with anthropic.messages.stream(model=model, messages=messages, max_tokens=1000) as stream:
            async for piece in stream.text_stream:
                shown += piece
    except AnthropicError as error:
        return f"{shown}|{error}"
    return shown


async def through_ai_sdk(api: Client, model: str) -> str:
    chat = (await api.chat()).removeprefix("/api/chats/")
    message = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": f"Mine is {CARD}."}]}
    body = {"id": chat, "messages": [message], "trigger": "submit-message", "turnstream": {"model": model}}
    response = await api.post("/api/ai-sdk/chat", json=body)
    assert response.status_code == 200, response.text
    shown = ""
    for line in response.text.splitlines():
        if line.startswith("data: {"):
            chunk = json.loads(line[6:])
            match chunk["type"]:
                case "text-delta":
                    shown += chunk["delta"]
                case "reset-step":
                    shown = ""
                case "error":
                    shown += f"|{chunk['errorText']}"
                case _:
                    pass
    return shown


async def through_ag_ui(api: Client, model: str) -> str:
    body = {
        "threadId": "018f2c1a-5b7e-7cc1-9d3a-2f6b8f3c9a10",
        "runId": "r1",
        "messages": [{"id": "m1", "role": "user", "content": f"Mine is {CARD}."}],
        "tools": [],
        "context": [],
        "state": {},
        "forwardedProps": {"turnstream": {"model": model}},
    }
    response = await api.post("/api/ag-ui", json=body)
    assert response.status_code == 200, response.text
    shown = ""
    for line in response.text.splitlines():
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            match event["type"]:
                case "TEXT_MESSAGE_CONTENT":
                    shown += event["delta"]
                case "MESSAGES_SNAPSHOT":
                    shown = ""
                case "RUN_ERROR":
                    shown += f"|{event['message']}"
                case _:
                    pass
    return shown


async def every_dialect(server: Server, api: Client, reply: Callable[[], Reply]) -> dict[str, str]:
    """Returns the final text that each client has, followed by a bar and the client's error message."""
    async with sdks(server) as (openai, anthropic):
        return {
            "responses": await through_responses(openai, server.scripts.model(reply())),
            "chat completions": await through_chat(openai, server.scripts.model(reply())),
            "messages": await through_messages(anthropic, server.scripts.model(reply())),
            "AI SDK": await through_ai_sdk(api, server.scripts.model(reply())),
            "AG-UI": await through_ag_ui(api, server.scripts.model(reply())),
        }


async def test_every_dialect_shows_the_masked_text(database_url: str, tmp_path: Path) -> None:
    async with guarded(database_url, tmp_path, PATTERNS) as (server, api):
        shown = await every_dialect(server, api, lambda: message_of(text("Yours is ", CARD[:9], CARD[9:], ".")))
        assert set(shown.values()) == {"Yours is [card]."}, shown
        assert "4111" not in await stored(server)


async def test_messages_that_wait_and_the_past_in_a_request_are_checked(database_url: str, tmp_path: Path) -> None:
    async with guarded(database_url, tmp_path, PATTERNS) as (server, api):
        pause, chat = Pause(), await api.chat()
        said = await api.say(chat, model=server.scripts.model(pausing(pause, "A", "B")))
        await pause.reached.wait()
        body = {"blocks": [{"type": "text", "text": f"Mine is {CARD}."}]}
        steered = await api.json("POST", f"{chat}/turns", 202, json={**body, "on_busy": "steer"})
        queued = await api.json("POST", f"{chat}/turns", 201, json={**body, "on_busy": "enqueue"})
        waiting = [str(steered), str(queued), str(await api.json("GET", f"{chat}/queue"))]
        assert "[card]" in waiting[1]
        assert "[card]" in waiting[2]
        assert not any("4111" in each for each in waiting)
        pause.go.set()
        await api.events(said.stream_url)
        model, provider = server.scripts.provider(message_of(text("Fine.")))
        call: Any = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        messages: Any = [
            {"role": "user", "content": f"Mine is {CARD}."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": f"It is {CARD}."},
            {"role": "assistant", "content": "I see."},
            {"role": "user", "content": "And now?"},
        ]
        async with sdks(server) as (openai, _):
            await openai.chat.completions.create(model=model, messages=messages)
        assert str(provider.requests[0].messages).count("[card]") == 2
        assert "4111" not in str(provider.requests)
        assert "4111" not in await stored(server)


async def test_every_dialect_ends_with_the_reason_of_a_guardrail(database_url: str, tmp_path: Path) -> None:
    declared = '[guardrails.secrets]\non = ["text"]\npatterns = ["cards"]\naction = "end"\nreason = "No cards."\n'
    async with guarded(database_url, tmp_path, declared) as (server, api):
        shown = await every_dialect(server, api, lambda: message_of(text("Yours is ", CARD, " I think.")))
    for name, each in shown.items():
        assert "No cards." in each.partition("|")[2], (name, each)
        assert "4111" not in each, (name, each)


async def test_every_dialect_takes_back_a_retracted_text_or_fails(database_url: str, tmp_path: Path) -> None:
    async with checking(verdict("secret", {"verdict": "retract", "text": "(gone)"})) as checker:
        declared = f'[guardrails.policy]\non = ["text"]\nurl = "{checker.url}"\nwindow = 1\n'
        async with guarded(database_url, tmp_path, declared) as (server, api):
            shown = await every_dialect(server, api, lambda: message_of(text("I am Bob", " and know", " the secret.")))
            while "Bob" in await stored(server):  # noqa: ASYNC110, the checkpoints that prune the journal have no event
                await asyncio.sleep(0.05)
    # A client of Chat Completions keeps the text that it has received. A client of the Messages API is instructed to
    # read the answer again.
    assert shown.pop("chat completions") == "I am Bob and know(gone)"
    assert "what was sent of it is void" in shown.pop("messages")
    assert set(shown.values()) == {"(gone)"}


# --- retraction is durable -------------------------------------------------------------------------------------------


async def test_derived_data_of_a_retracted_text_has_the_replacement(database_url: str, tmp_path: Path) -> None:
    async with checking(verdict("secret", {"verdict": "retract", "text": "Something else."})) as checker:
        declared = f'[guardrails.policy]\non = ["text"]\nurl = "{checker.url}"\nwindow = 1\n'
        titles = ScriptedProvider([message_of(text("A title"))])
        more = {"title_model": "titles", "offers": [ProviderModels(titles, ["titles"])]}
        async with guarded(database_url, tmp_path, declared, **more) as (server, api):
            chat = await api.chat()
            said = await api.ask(
                chat, model=server.scripts.model(message_of(text("I am Bob", " and know", " the secret.")))
            )
            read = [str(said.assistant), str(await api.events(said.stream_url))]
            found = await api.json("GET", "/api/chats?q=Something")
            assert chat.endswith(found["chats"][0]["id"])
            assert (await api.json("GET", "/api/chats?q=Bob"))["chats"] == []
            read.append((await api.get(f"{chat}/export")).text)
    assert not any("Bob" in each for each in read)
    assert "Bob" not in str(titles.requests)

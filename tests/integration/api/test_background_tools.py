"""Background tools behind the API: a turn shows its job, a job is no required action, and no dialect treats the wait
for a job as the end of the turn.
"""

import asyncio
import re
from typing import Any

import pytest
from openai import AsyncOpenAI
from structlog.testing import capture_logs

from tests.extensions.feed.test_feed import take_until
from tests.support.http_client import Client
from tests.support.http_server import pausing, serving
from turnstream.api.routes import ENDPOINTS
from turnstream.scripted import Pause, message_of, text, tool_use
from turnstream.tools.tool import Detached, ResultAddress, ToolContext, tool
from turnstream.tools.toolset import Toolset


async def waiting_turn(api: Client) -> dict[str, Any]:
    while True:
        for chat in (await api.json("GET", "/api/chats"))["chats"]:
            turns = (await api.json("GET", f"/api/chats/{chat['id']}/turns"))["turns"]
            if turns and turns[-1]["status"] == "waiting":
                return dict(turns[-1])
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("dialect", ["completions", "responses"])
async def test_an_answer_ends_after_the_job_of_its_call(database_url: str, dialect: str) -> None:
    pause = Pause()

    @tool(background=True)
    async def dig(context: ToolContext) -> str:
        """Dig."""
        context.progress("half a hole")
        pause.reached.set()
        await pause.go.wait()
        return "a hole"

    async with (
        serving(database_url, Toolset([dig])) as server,
        AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client,
        Client(server.url) as api,
    ):
        model, _ = server.scripts.provider(message_of(tool_use("dig", {}, "a")), message_of(text("There.")))

        async def ask() -> str | None:
            if dialect == "responses":
                return (await client.responses.create(model=model, input="Dig!")).output_text
            messages: Any = [{"role": "user", "content": "Dig!"}]
            return (await client.chat.completions.create(model=model, messages=messages)).choices[0].message.content

        answer = asyncio.create_task(ask())
        await pause.reached.wait()
        turn = await waiting_turn(api)
        while turn["jobs"][0]["progress"] is None:
            turn = await waiting_turn(api)
        assert [(job["name"], job["tool_use_id"], job["progress"]) for job in turn["jobs"]] == [
            ("dig", "a", "half a hole")
        ]
        assert turn["actions"] == []
        assert (await api.json("GET", "/api/waiting"))["calls"] == []
        sentences = (await api.json("GET", f"/api/chats/{turn['chat_id']}/turns/{turn['id']}/why"))["reasons"]
        assert any(f"the job {turn['jobs'][0]['id']} of the tool dig" in sentence for sentence in sentences)
        assert not answer.done()
        pause.go.set()
        assert await answer == "There."


async def test_a_stopped_call_gets_a_result_and_the_turn_continues(database_url: str) -> None:
    pause, ended = Pause(), asyncio.Event()

    @tool(background=True)
    async def dig(where: str) -> str:
        """Dig."""
        pause.reached.set()
        try:
            await pause.go.wait()
        finally:
            ended.set()
        return where

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    calls = [tool_use("dig", {"where": "here"}, "a"), tool_use("look", {}, "b")]
    async with serving(database_url, Toolset([dig, look])) as server, Client(server.url) as api:
        model, provider = server.scripts.provider(message_of(*calls), message_of(text("Then not.")))
        message = {"blocks": [{"type": "text", "text": "Dig!"}], "model": model}
        posted = await api.json("POST", "/api/turns", 201, json=message)
        await pause.reached.wait()
        turn = await waiting_turn(api)
        while turn["jobs"][0]["state"] != "running":
            turn = await waiting_turn(api)
        (job,) = turn["jobs"]
        assert (job["kind"], job["child"], job["since"] >= turn["created_at"]) == ("tool", None, True)
        (chat,) = (await api.json("GET", "/api/chats"))["chats"]
        assert chat["jobs"] == 1
        path = f"/api/chats/{turn['chat_id']}/turns/{turn['id']}"
        refused = await api.json("POST", f"{path}/calls/b/cancel", 202)  # the call has its result, so nothing changes
        assert refused["jobs"] == [job]
        assert "no call 'c'" in (await api.json("POST", f"{path}/calls/c/cancel", 404))["detail"]
        stopped = await api.json("POST", f"{path}/calls/a/cancel", 202)
        assert stopped["jobs"] == []
        await ended.wait()
        events = await api.events(f"{path}/stream")
        assert events[-1].name == "turn_complete"
        done = await api.json("GET", path)
        results = {block["tool_use_id"]: block for block in done["blocks"] if block["type"] == "tool_result"}
        assert results["a"]["text"] == "The user stopped this call while it ran. It may have taken effect."
        assert results["a"]["notes"]["stopped"] is True
        assert results["b"]["text"] == "seen"
        assert done["blocks"][-1]["text"] == "Then not."
        assert len(provider.requests) == 2
        assert (await api.json("POST", f"{path}/calls/a/cancel"))["status"] == "complete"
        assert (await api.json("GET", "/api/chats"))["chats"][0]["jobs"] == 0
        assert posted["assistant_turn"]["id"] == turn["id"]


async def test_a_program_elsewhere_settles_one_job_with_its_token_and_can_do_nothing_else(database_url: str) -> None:
    addresses: list[ResultAddress] = []

    @tool(background=True, max_result_chars=50)
    async def dig(context: ToolContext) -> Detached:
        """Dig elsewhere."""
        addresses.extend([await context.result_address(), await context.result_address()])
        return Detached("pit 7", message="dug elsewhere")

    async with serving(database_url, Toolset([dig])) as server, Client(server.url) as stranger:
        model, provider = server.scripts.provider(message_of(tool_use("dig", {}, "a")), message_of(text("Deep.")))
        async with Client(server.url, token=await server.token("ada")) as api:
            message = {"blocks": [{"type": "text", "text": "Dig!"}], "model": model}
            await api.json("POST", "/api/turns", 201, json=message)
            turn = await waiting_turn(api)
            while turn["jobs"][0]["state"] != "detached":
                turn = await waiting_turn(api)
            assert turn["jobs"][0]["progress"] == "dug elsewhere"
            first, last = addresses
            path, result = f"/api/jobs/{turn['jobs'][0]['id']}/result", {"output": {"depth": 3}, "data": {"map": 1}}
            assert (first.path, last.path) == (path, path)

            async def put(token: str | None, status: int = 200, **sent: Any) -> Any:
                headers = {} if token is None else {"Authorization": f"Bearer {token}"}
                return await stranger.json("POST", path, status, json=sent or result, headers=headers)

            for token in (None, first.token, "tsj_x", await server.token("bob")):
                assert "token" in (await put(token, 401))["detail"].lower()
            another = path.replace(turn["jobs"][0]["id"], turn["id"])
            headers = {"Authorization": f"Bearer {last.token}"}
            await stranger.json("POST", another, 401, json=result, headers=headers)
            assert (await put(last.token, 422, output="x", is_eror=True))["errors"][0]["field"] == "is_eror"
            for endpoint in (each for each in ENDPOINTS if not each.open):
                closed = re.sub(r"{[^}]*}", turn["id"], endpoint.path)
                answer = await stranger.request(endpoint.method, closed, headers=headers)
                assert answer.status_code == 401, endpoint.call
            assert await put(last.token) == {"applied": True, "reason": None}
            assert await put(last.token, output="again") == {"applied": False, "reason": "settled"}
            done = f"/api/chats/{turn['chat_id']}/turns/{turn['id']}"
            assert (await api.events(f"{done}/stream"))[-1].name == "turn_complete"
            assert await put(last.token) == {"applied": False, "reason": "settled"}
            (block,) = [each for each in (await api.json("GET", done))["blocks"] if each["type"] == "tool_result"]
    assert (block["text"], block["data"]) == ('{"depth":3}', {"map": 1})
    assert len(provider.requests) == 2


async def test_a_call_that_waits_for_a_person_is_not_stopped_but_answered(database_url: str) -> None:
    locate = {"type": "client", "name": "locate", "description": "Where?", "input_schema": {"type": "object"}}
    async with serving(database_url, Toolset([])) as server, Client(server.url) as api:
        model, _ = server.scripts.provider(message_of(tool_use("locate", {}, "a")))
        message = {"blocks": [{"type": "text", "text": "Where?"}], "model": model, "tools": [locate]}
        await api.json("POST", "/api/turns", 201, json=message)
        turn = await waiting_turn(api)
        path = f"/api/chats/{turn['chat_id']}/turns/{turn['id']}"
        refused = await api.json("POST", f"{path}/calls/a/cancel", 409)
        assert "Call a does not run in the background: answer it if it waits" in refused["detail"]
        assert (await api.json("GET", path))["status"] == "waiting"


async def test_a_call_that_reports_is_stopped_after_its_turn_and_its_report_starts_another(database_url: str) -> None:
    pause, ended = Pause(), asyncio.Event()

    @tool(background=True, reports=True)
    async def dig() -> str:
        """Dig."""
        pause.reached.set()
        try:
            await pause.go.wait()
        finally:
            ended.set()
        return "a hole"

    async with serving(database_url, Toolset([dig])) as server, Client(server.url) as api:
        replies = [message_of(tool_use("dig", {}, "a")), message_of(text("Soon.")), message_of(text("Then not."))]
        model, provider = server.scripts.provider(*replies)
        first = await api.ask(await api.chat(), "Dig!", model=model)
        await pause.reached.wait()
        while (report := (await api.json("GET", first.url))["reports"][0])["state"] != "running":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (report["name"], report["tool_use_id"], report["delivery"]) == ("dig", "a", None)
        stopped = await api.json("POST", f"{first.url}/calls/a/cancel", 200)
        assert (stopped["status"], stopped["reports"][0]["state"]) == ("complete", "settled")
        await ended.wait()
        while (report := (await api.json("GET", first.url))["reports"][0])["round"] is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        path = f"{first.url.rpartition('/')[0]}/{report['turn']}"
        events = await api.events(f"{path}/stream")
        second = await api.json("GET", path)
        again = await api.json("POST", f"{first.url}/calls/a/cancel", 200)
    assert [each.name for each in events[:5]] == [
        *("turn_start", "block_start", "block_delta", "block_stop", "round_start")
    ]
    assert (report["delivery"], report["round"], again["reports"]) == ("started", 0, [report])
    said, answer = second["blocks"]
    assert said["text"] == "The user stopped this call while it ran. It may have taken effect."
    assert (said["type"], said["data"]["is_error"], answer["text"]) == ("report", True, "Then not.")
    assert len(provider.requests) == 3


async def counted(api: Client) -> int:
    """Reads the number of background calls of the only chat, from the list of chats."""
    (chat,) = (await api.json("GET", "/api/chats"))["chats"]
    return int(chat["jobs"])


async def test_calls_that_report_are_counted_after_their_turn_until_they_are_settled(database_url: str) -> None:
    going = {where: asyncio.Event() for where in ("Rome", "Pisa")}

    @tool(background=True, reports=True)
    async def dig(where: str) -> str:
        """Dig."""
        await going[where].wait()
        return where

    calls = message_of(*(tool_use("dig", {"where": where}, where) for where in going))
    replies = [calls, *(message_of(text(words)) for words in ("Soon.", "One.", "Two."))]
    async with serving(database_url, Toolset([dig])) as server, Client(server.url) as api:
        turn = await api.ask(await api.chat(), "Dig!", model=server.scripts.model(*replies))
        state = {"turn": turn.assistant["id"], "status": "complete", "stop_reason": "end_turn"}
        listed = await api.json("GET", "/api/chats")
        assert await counted(api) == 2
        async with api.follow("/api/stream") as events:
            assert (await take_until(events, "turn", **state)).data["jobs"] == 2
        async with api.follow("/api/stream", listed["cursor"]) as events:
            found = await take_until(events, "turn", **state)
            assert found.data["jobs"] == 2
        async with api.follow("/api/stream", found.id) as events:
            for left, go in enumerate(reversed(going.values())):
                await take_until(events, "turn", **state, jobs=2 - left)
                go.set()
            await take_until(events, "turn", **state, jobs=0)
        assert await counted(api) == 0
        async with api.follow("/api/stream") as events:  # no turn changes after this point
            chat = await api.chat()
            async for event in events:
                assert event.data.get("turn") != turn.assistant["id"]
                if event.name == "chat" and chat.endswith(event.data["id"]):
                    break


async def test_calls_that_report_are_not_counted_once_their_turn_is_cancelled(database_url: str) -> None:
    begun, pause = asyncio.Event(), Pause()

    @tool(background=True, reports=True)
    async def dig() -> str:
        """Dig."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    async with serving(database_url, Toolset([dig])) as server, Client(server.url) as api:
        model = server.scripts.model(message_of(tool_use("dig", {}, "a")), pausing(pause, "So", "on."))
        turn = await api.say(await api.chat(), "Dig!", model=model)
        await begun.wait()
        await pause.reached.wait()
        assert await counted(api) == 1
        async with api.follow("/api/stream") as events:
            await take_until(events, "turn", jobs=1)
            await api.json("POST", f"{turn.url}/cancel", 202)
            await take_until(events, "turn", turn=turn.assistant["id"], status="cancelled", jobs=0)
        assert await counted(api) == 0


async def test_a_result_from_elsewhere_for_a_deleted_chat_is_refused(database_url: str) -> None:
    addresses = asyncio.Queue[ResultAddress]()

    @tool(background=True, reports=True)
    async def send(context: ToolContext) -> Detached:
        """Send something away."""
        addresses.put_nowait(await context.result_address())
        return Detached("away")

    async with serving(database_url, Toolset([send])) as server, Client(server.url) as api:
        model, _ = server.scripts.provider(message_of(tool_use("send", {}, "a")), message_of(text("Sent.")))
        chat = await api.chat()
        await api.ask(chat, "Send!", model=model)
        address = await addresses.get()
        await api.json("DELETE", chat)
        async with Client(server.url, token=address.token) as elsewhere:
            with capture_logs() as logs:
                refused = await elsewhere.json("POST", address.path, 401, json={"output": "there"})
        assert "token" in refused["detail"].lower()
        assert [line["job"] for line in logs if line["event"] == "job.result_refused"] == [address.path.split("/")[3]]

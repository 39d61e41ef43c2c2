"""`turnstream chat` in a terminal and in a script, with the real server."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import httpx2
import pytest

from tests.acceptance.conftest import StartServer
from tests.acceptance.terminal_clients import Json, OpenTerminal, RunScript, TurnProbe, scripts, terminals
from tests.support.http_server import serving
from tests.support.server_process import free_port
from turnstream.domain.identity import Identity
from turnstream.scripted import Pause, message_of, text, tool_use
from turnstream.storage.database import connect
from turnstream.storage.owners.tokens import Tokens
from turnstream.tools.tool import Detached, PersonQuestion, ToolContext, tool
from turnstream.tools.toolset import Toolset

pytestmark = pytest.mark.timeout(180)

QUESTION: Final = "What is the rule of twelfths?"
SLOW: Final = {"TURNSTREAM_DEMO_DELAY": "0.05"}


@pytest.fixture
def run_script(tmp_path: Path) -> Iterator[RunScript]:
    with scripts(tmp_path) as start:
        yield start


@pytest.fixture
async def open_terminal(tmp_path: Path) -> AsyncIterator[OpenTerminal]:
    with terminals(tmp_path) as start:
        yield start


def text_of(turn: Json) -> str:
    """Returns the prose of a turn. An interrupted text continues in the next block, in mid-sentence."""
    texts = [block for block in turn["blocks"] if block["type"] == "text"]
    ends = ["" if block.get("interrupted") else "\n\n" for block in texts[:-1]] + ["\n"]
    return "".join(block["text"] + end for block, end in zip(texts, ends, strict=True))


def answering(turn: Json) -> bool:
    """Returns True within the last text, after the tool calls."""
    return turn["status"] == "running" and any(
        block["type"] == "text" and block["round"] == 3 and len(block["text"]) > 60 for block in turn["blocks"]
    )


async def test_a_question_as_an_argument_prints_the_answer_and_nothing_else(
    server: StartServer, run_script: RunScript
) -> None:
    running = await server()
    code, out, notes = await run_script(running.url, "What", "is the rule of twelfths?").end()
    async with TurnProbe(running) as probe:
        turn = await probe.until(lambda _: True)
    assert (code, notes) == (0, "")
    assert out == text_of(turn)
    assert "twelfths of the range" in out


async def test_a_question_can_be_piped_and_a_chat_continued_and_listed(
    server: StartServer, run_script: RunScript
) -> None:
    running = await server()
    assert (await run_script(running.url, stdin=QUESTION).end())[0] == 0
    code, out, _ = await run_script(running.url, "--list").end()
    identity, _, title = out.rstrip("\n").split("\t")
    assert (code, title) == (0, QUESTION)
    assert (await run_script(running.url, "--continue", "And the tides?").end())[0] == 0
    assert (await run_script(running.url, identity[:13], "sum it up:", "-", stdin="spring and neap").end())[0] == 0
    async with TurnProbe(running) as probe:
        assert await probe.count() == 1
        assert (await probe.until(lambda _: True))["chat_id"] == identity


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_restart_of_the_server_in_mid_answer_loses_no_text(
    server: StartServer, run_script: RunScript, how: signal.Signals
) -> None:
    running = await server(**SLOW)
    script = run_script(running.url, QUESTION)
    async with TurnProbe(running) as probe:
        await probe.until(answering)
        await running.restart(how, TURNSTREAM_DEMO_DELAY="0")
        turn = await probe.until(lambda turn: turn["status"] == "complete")
        assert await probe.count() == 1
    code, out, notes = await script.end()
    assert code == 0
    assert "reconnecting" in notes
    assert out == text_of(turn)


async def test_an_interrupted_script_stops_the_turn_and_prints_the_text_so_far(
    server: StartServer, run_script: RunScript
) -> None:
    running = await server(**SLOW)
    script = run_script(running.url, QUESTION)
    async with TurnProbe(running) as probe:
        await probe.until(answering)
        script.process.send_signal(signal.SIGINT)
        code, out, notes = await script.end()
        turn = await probe.until(lambda _: True)
    assert code == 130
    assert turn["status"] == "cancelled"
    assert turn["blocks"][-1]["interrupted"]
    assert out == text_of(turn)
    assert notes.splitlines() == ["turnstream: stopping", "turnstream: stopped"]


async def test_a_person_sees_the_answer_with_its_tools_folded_and_can_stop_the_next_one(
    server: StartServer, open_terminal: OpenTerminal
) -> None:
    running = await server()
    terminal = open_terminal(running)
    await terminal.sees_prompt()
    terminal.type(f"{QUESTION}\r")
    await terminal.sees("∴ thought", '✓ doc_search query="rule twelfths", limit=3', "✓ doc_view", "as far as a script")
    await terminal.sees_prompt()
    assert "toolu_demo" not in terminal.screen.text

    await running.restart(signal.SIGTERM, **SLOW)
    async with TurnProbe(running) as probe:
        terminal.type("And when are spring tides?\r")
        await probe.until(answering)
        terminal.type("\x03")
        await terminal.sees("■ stopped")
        await terminal.sees_prompt()
        turn = await probe.until(lambda _: True)
    assert turn["status"] == "cancelled"
    terminal.type("\x04")
    assert await terminal.ended() == 0
    assert f"Come back with: turnstream chat {turn['chat_id'][:13]}" in terminal.screen.text


async def test_an_interrupt_asks_which_call_in_the_background_is_to_stop(
    database_url: str, open_terminal: OpenTerminal
) -> None:
    paused = {where: Pause() for where in ("Rome", "Oslo")}

    @tool(background=True)
    async def dig(where: str, context: ToolContext) -> str:
        """Dig."""
        context.progress("half a hole")
        await paused[where].go.wait()
        return f"a hole in {where}"

    calls = [tool_use("dig", {"where": where}, where) for where in paused]
    async with serving(database_url, Toolset([dig])) as running:
        model, provider = running.scripts.provider(message_of(*calls), message_of(text("One hole less.")))
        terminal = open_terminal(running, "--model", model)
        await terminal.sees_prompt()
        terminal.type("Dig\r")
        await terminal.sees("in the background · half a hole")
        terminal.type("\x03")
        await terminal.sees('  1  dig where="Rome"', '  2  dig where="Oslo"', "Stop a call (its number)")
        terminal.type("1\r")
        await terminal.sees('■ dig where="Rome" · stopped by a person')
        paused["Oslo"].go.set()
        await terminal.sees('✓ dig where="Oslo"', "One hole less.")
        await terminal.sees_prompt()
        (results,) = [message for message in provider.requests[-1].messages if message.role == "user"][1:]
        assert [block.text for block in results.blocks] == [
            "The user stopped this call while it ran. It may have taken effect.",
            "a hole in Oslo",
        ]
        terminal.type("\x04")
        assert await terminal.ended() == 0


async def test_a_question_of_a_call_in_the_background_is_answered_by_the_person(
    database_url: str, open_terminal: OpenTerminal
) -> None:
    form = '{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}'

    @tool(background=True)
    async def pilot(context: ToolContext) -> str | Detached:
        """Sends a pilot, whom the person names."""
        if context.handle is None:
            return Detached("asked", question=PersonQuestion("Which pilot?", 600, form))
        answer = context.answer
        return "No pilot came." if answer is None or answer.content is None else f"{answer.content['name']} came."

    async with serving(database_url, Toolset([pilot])) as running:
        calls = message_of(tool_use("pilot", {}, "a"), tool_use("pilot", {}, "b"))
        model, provider = running.scripts.provider(calls, message_of(text("Thanks.")))
        terminal = open_terminal(running, "--model", model)
        await terminal.sees_prompt()
        terminal.type("Send pilots\r")
        for name in ("Ada", "Bob"):
            await terminal.sees("? pilot asks you", "Which pilot?")
            await terminal.sees_prompt("(a)nswer, (d)ecline, (s)kip?")
            terminal.type("a\r")
            await terminal.sees_prompt("name (string):")
            terminal.type(f"{name}\r")
        await terminal.sees("✓ pilot", "Thanks.")
        await terminal.sees_prompt()
        results = [message for message in provider.requests[-1].messages if message.role == "user"][-1]
        assert sorted(block.text for block in results.blocks) == ["Ada came.", "Bob came."]
        terminal.type("\x04")
        assert await terminal.ended() == 0


async def test_a_call_that_reports_is_listed_and_stopped_after_its_answer(
    database_url: str, open_terminal: OpenTerminal
) -> None:
    paused = {where: Pause() for where in ("Oslo", "Rome")}

    @tool(background=True, reports=True)
    async def dig(where: str, context: ToolContext) -> str:
        """Dig."""
        context.progress("half a hole")
        paused[where].reached.set()
        await paused[where].go.wait()
        return f"a hole in {where}"

    calls = [tool_use("dig", {"where": where}, where) for where in paused]
    words = [message_of(text(said)) for said in ("They dig.", "Rome is off.", "Oslo is done.")]
    async with serving(database_url, Toolset([dig])) as running:
        model, provider = running.scripts.provider(message_of(*calls), *words)
        terminal = open_terminal(running, "--model", model)
        await terminal.sees_prompt()
        terminal.type("Dig\r")
        await terminal.sees("They dig.")
        await terminal.sees_prompt()
        for pause in paused.values():
            await pause.reached.wait()
        async with TurnProbe(running) as probe:
            await probe.until(lambda turn: [each["progress"] for each in turn["reports"]] == ["half a hole"] * 2)
            terminal.type("/calls\r")
            await terminal.sees('  1  dig where="Oslo" · in the background · half a hole', '  2  dig where="Rome"')
            terminal.type("/list\r")
            await terminal.sees("(2 running)")
            terminal.type("/stop 3\r")
            await terminal.sees("Give /stop a number from /calls.")
            terminal.type("/stop 2\r")
            await terminal.sees('  1  dig where="Oslo" · in the background · half a hole', "> /stop 2")
            await probe.until(lambda turn: turn["blocks"][-1:] != [] and turn["blocks"][-1]["text"] == "Rome is off.")
            terminal.type("/list\r")
            await terminal.sees("(1 running)")
            paused["Oslo"].go.set()
            await probe.until(lambda turn: turn["blocks"][-1:] != [] and turn["blocks"][-1]["text"] == "Oslo is done.")
        terminal.type("/calls\r")
        await terminal.sees("No call runs in the background.")
        reported = provider.requests[2].messages[-1].blocks[-1].text
        assert "The user stopped this call while it ran. It may have taken effect." in reported
        terminal.type("\x04")
        assert await terminal.ended() == 0


async def test_schedules_are_made_paused_run_and_deleted_at_the_prompt(
    database_url: str, open_terminal: OpenTerminal
) -> None:
    async with serving(database_url) as running, httpx2.AsyncClient(base_url=running.url, trust_env=False) as client:
        body = {"name": "Reports", "request": {"blocks": [{"type": "text", "text": "Sort it."}]}}
        terminal = open_terminal(running)
        await terminal.sees_prompt()
        terminal.type("/schedules\r")
        await terminal.sees("There are no schedules and no triggers.")
        terminal.type("/schedule soon\r")
        await terminal.sees("Give /schedule the time and the text")
        terminal.type("/schedule 90m Is the tide high?\r")
        await terminal.sees("  1  Is the tide high?  every 90 min · next 2")
        trigger = (await client.post("/api/triggers", json=body)).json()
        terminal.type("/run 1\r")
        await terminal.sees(f"  2  Reports  {trigger['path']}")
        async with TurnProbe(running) as probe:
            await probe.until(lambda turn: turn["status"] == "complete")
        terminal.type("/schedules\r")
        await terminal.sees("  1  Is the tide high?  every 90 min · next 2", " · last 2")
        terminal.type("/pause 1\r")
        await terminal.sees("  1  Is the tide high?  every 90 min · paused · last 2")
        terminal.type("/pause 2\r")
        await terminal.sees(f"  2  Reports  paused · {trigger['path']}")
        assert (await client.get(trigger["path"])).json()["paused"] == "person"
        terminal.type("/run 2\r")
        await terminal.sees("Give /run a number from /schedules that is no trigger.")
        terminal.type("/resume 1\r")
        await terminal.sees("every 90 min · next 2")
        terminal.type("/delete 1\r")
        await terminal.sees("  1  Reports")
        assert (await client.get("/api/schedules")).json() == {"schedules": []}
        terminal.type("\x04")
        assert await terminal.ended() == 0


async def test_a_person_opens_a_running_turn_while_the_server_is_killed(
    server: StartServer, open_terminal: OpenTerminal
) -> None:
    running = await server(TURNSTREAM_DEMO_DELAY="0.3")
    async with TurnProbe(running) as probe:
        await probe.ask(QUESTION)
        await probe.until(lambda turn: len(turn["blocks"]) > 0)
        terminal = open_terminal(running, "--continue")
        await terminal.sees(f"> {QUESTION}", "This is a scripted demo")
        await running.kill()
        await terminal.sees("connection lost, reconnecting")
        await running.start(TURNSTREAM_DEMO_DELAY="0")
        await terminal.sees("That is as far as a script can go.")
        await terminal.sees_prompt()
        await probe.until(lambda turn: turn["status"] == "complete")
    assert terminal.screen.text.count("This is a scripted demo") == 1
    assert terminal.screen.text.count("I found this in") == 1
    assert "reconnecting" not in terminal.screen.text


async def test_chats_are_listed_and_opened_at_the_prompt(server: StartServer, open_terminal: OpenTerminal) -> None:
    running = await server()
    async with TurnProbe(running) as probe:
        for question in (QUESTION, "List my files"):
            await probe.ask(question)
            await probe.until(lambda turn: turn["status"] == "complete")
    terminal = open_terminal(running)
    await terminal.sees_prompt()
    terminal.type("/list\r")
    await terminal.sees("  1  ", "  2  ", QUESTION, "List my files")
    terminal.type("/open 2\r")
    await terminal.sees(f"> {QUESTION}", "as far as a script can go")
    terminal.type("/more\r")
    await terminal.sees('"query": "rule twelfths"')
    terminal.type("/nonsense\r")
    await terminal.sees("There is no command /nonsense")
    terminal.type("/quit\r")
    assert await terminal.ended() == 0


async def test_a_chat_is_copied_at_the_prompt_and_continues_there(
    server: StartServer, open_terminal: OpenTerminal
) -> None:
    running = await server()
    async with TurnProbe(running) as probe:
        await probe.ask(QUESTION)
        await probe.until(lambda turn: turn["status"] == "complete")
    terminal = open_terminal(running)
    await terminal.sees_prompt()
    terminal.type("/fork\r")
    await terminal.sees("No chat is open yet.")
    terminal.type("/list\r")
    await terminal.sees("  1  ")
    terminal.type("/open 1\r")
    await terminal.sees(f"> {QUESTION}", "as far as a script can go")
    terminal.type("/fork\r")
    await terminal.sees("(fork)")
    await terminal.sees_prompt()
    terminal.type("/list\r")
    await terminal.sees("  2  ")
    terminal.type("/quit\r")
    assert await terminal.ended() == 0


async def test_a_message_is_edited_and_answered_again_with_files_and_branches_are_shown(
    server: StartServer, open_terminal: OpenTerminal, tmp_path: Path
) -> None:
    (tmp_path / "tide.txt").write_text("Low tide at ten.", encoding="utf-8")
    running = await server()
    async with TurnProbe(running) as probe:
        await probe.ask(QUESTION)
        first = await probe.until(lambda turn: turn["status"] == "complete")
        terminal = open_terminal(running, "--continue")
        await terminal.sees(f"> {QUESTION}", "as far as a script can go")
        terminal.type("/model nonsense\r")
        await terminal.sees("There is no model nonsense. /model lists the models.")
        terminal.type("/model\r")
        await terminal.sees("* demo")
        terminal.type("/attach nothing.txt\r")
        await terminal.sees("nothing.txt cannot be read: No such file or directory.")
        terminal.type("/attach tide.txt\r")
        await terminal.sees("tide.txt goes with your next message.")
        terminal.type("What stands in it?\r")
        seen = {first["id"]}
        second = await probe.until(lambda turn: turn["status"] == "complete" and turn["id"] not in seen)
        await terminal.sees_prompt()
        terminal.type("/edit And what else stands there?\r")
        third = await probe.until(
            lambda turn: turn["status"] == "complete" and turn["id"] not in {first["id"], second["id"]}
        )
        await terminal.sees_prompt()
        terminal.type("/retry\r")
        await probe.until(lambda turn: turn["status"] == "complete" and len(turn["siblings"]) == 2)
        path = await probe.path()
    await terminal.sees_prompt()
    edited = path[-2]
    assert [block["type"] for block in edited["blocks"]] == ["text", "document"]
    assert edited["blocks"][0]["text"] == "And what else stands there?"
    assert edited["blocks"][1]["data"]["title"] == "tide.txt"
    assert third["id"] in path[-1]["siblings"]
    terminal.type("/branches\r")
    await terminal.sees("1   > What stands in it?", "2 * > And what else stands there?", "4 * ")
    terminal.type("/branch 1\r")
    await terminal.sees("> What stands in it?")
    await terminal.sees_prompt()
    terminal.type("/cost\r")
    await terminal.sees("2 answers · ", "no price is known")
    terminal.type("/search twelfths\r")
    await terminal.sees("  1  ", "rule of twelfths")
    terminal.type("/quit\r")
    assert await terminal.ended() == 0


async def test_messages_that_wait_are_listed_and_changed_at_the_prompt(
    server: StartServer, open_terminal: OpenTerminal
) -> None:
    running = await server(TURNSTREAM_DEMO_DELAY="0.5")
    async with TurnProbe(running) as probe:
        await probe.ask(QUESTION)
        await probe.cancel()
        await probe.until(lambda turn: turn["status"] == "cancelled")
        terminal = open_terminal(running, "--continue")
        await terminal.sees_prompt()
        terminal.type("/queue\r")
        await terminal.sees("No message waits.")
        await probe.enqueue("Second", "Third", "Fourth", "Fifth")
        terminal.type("/queue\r")
        await terminal.sees("1  next  Third", "2  next  Fourth", "3  next  Fifth")
        terminal.type("/change 2 Fourthly, then\r")
        await terminal.sees("2  next  Fourthly, then")
        terminal.type("/first 3\r")
        await terminal.sees("1  next  Fifth", "2  next  Third")
        terminal.type("/now 2\r")
        await terminal.sees("1  steers  Third", "2  next  Fifth")
        terminal.type("/withdraw 3\r")
        await terminal.sees_prompt()
        terminal.type("/withdraw Third\r")
        await terminal.sees("Give /withdraw a number from /queue.")
        path = await probe.path()
    assert [turn["blocks"][0]["text"] for turn in path if turn["role"] == "user"] == [QUESTION, "Second", "Fifth"]
    terminal.type("/quit\r")
    assert await terminal.ended() == 0


async def test_errors_are_sentences_with_a_remedy(
    server: StartServer, run_script: RunScript, database_url: str
) -> None:
    async with connect(database_url, size=2) as database:
        token = await Tokens(database).create("ada", Identity("ada"))
    running = await server()
    unreachable, no_token, wrong_model, ada = await asyncio.gather(
        run_script(f"http://127.0.0.1:{free_port()}", "Hello?").end(),
        run_script(running.url, "Hello?").end(),
        run_script(running.url, "--model", "no-such-model", "Hello?", TURNSTREAM_TOKEN=token).end(),
        run_script(running.url, "--param", "max_tokens=50", "Hello?", TURNSTREAM_TOKEN=token).end(),
    )
    wrong_param = await run_script(running.url, "--param", "heat=1", "Hello?", TURNSTREAM_TOKEN=token).end()
    assert [script[:2] for script in (unreachable, no_token, wrong_model, wrong_param)] == [(1, "")] * 4
    assert "`params.heat` must be left out" in wrong_param[2]
    assert "start one with `turnstream serve`" in unreachable[2]
    assert "turnstream tokens create NAME" in no_token[2]
    assert "no-such-model" in wrong_model[2]
    assert ada == (0, ada[1], "")

"""The reasons why a turn does not continue: any replica explains an open turn, and the rows explain an ended turn."""

import asyncio
from uuid import uuid4

import httpx2
import pytest
from click.testing import CliRunner

from tests.integration.test_loop_people import waits
from tests.integration.test_queue_order import enqueue
from tests.support.agents import call
from tests.support.harness import Asked, Harness, Replica
from tests.support.http_client import Client
from tests.support.http_server import Server, pausing, serving
from tests.support.server_process import clean_environment
from turnstream.cli import commands
from turnstream.domain.errors import NotFound
from turnstream.engine.upkeep.activity_reports import ActivityReports
from turnstream.extensions.agents.agent import Agent
from turnstream.extensions.agents.tool import agent_tool
from turnstream.kit.ids import new_id
from turnstream.libraries.explanations.reasons import TurnState, reasons
from turnstream.libraries.explanations.rows import TurnStates
from turnstream.scripted import Pause, ScriptedProvider, message_of, text, tool_use
from turnstream.storage.database import Statement
from turnstream.storage.rows import OWNER_RUNNING_TURNS
from turnstream.storage.runs.queue import Queue
from turnstream.tools.tool import tool
from turnstream.tools.toolset import Toolset

DECLINED = Statement("UPDATE turns SET declined = ARRAY[CAST(:replica AS uuid)] WHERE status = 'queued' RETURNING id")
INTERRUPTED = Statement("UPDATE turns SET recoveries = 1 WHERE status = 'queued' RETURNING id")
NO_LEASE = Statement("UPDATE replicas SET lease_until = now() - interval '1 s' RETURNING id")


@tool(approval="always")
async def pay() -> str:
    """Pay."""
    return "paid"


async def reported(harness: Harness, replica: Replica, asked: Asked) -> TurnState:
    """Returns the turn's state as another replica reads it after the next report."""
    await ActivityReports(replica.worker.activity, harness.database, replica.queue.replica).report()
    return await TurnStates(harness.database).of(asked.turn)


async def test_the_silence_of_a_provider_and_a_queue_behind_it_are_seen_from_elsewhere(harness: Harness) -> None:
    pause = Pause()
    script = [pausing(pause, "Hel", "lo."), message_of(text("Bye."))]
    async with harness.replica(ScriptedProvider(script)) as replica:
        first = await harness.ask()
        second = await enqueue(harness, first)
        replica.worker.wake()
        await pause.reached.wait()
        while replica.view(first).open_length == 0:
            await replica.view(first).wakeup.wait()
        state = await reported(harness, replica, first)
        assert state.activity is not None
        assert (state.status, state.activity.stage, state.readers) == ("running", "streaming", 0)
        assert state.activity.silent is not None
        assert (await reported(harness, replica, second)).behind == first.turn
        pause.go.set()
        await harness.finish(replica, second)
    assert reasons(await TurnStates(harness.database).of(first.turn)) == ["The turn has ended: end_turn"]
    with pytest.raises(NotFound):
        await TurnStates(harness.database).of(uuid4())


async def test_a_running_tool_and_its_reader_are_named_and_a_replica_that_is_gone_too(harness: Harness) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @tool()
    async def dig() -> str:
        """Dig."""
        begun.set()
        await go.wait()
        return "dug"

    script = [message_of(tool_use("dig", {}, "a")), message_of(text("Done."))]
    async with harness.replica(ScriptedProvider(script), [dig]) as replica:
        asked = await harness.ask(tools=[dig])
        finishing = asyncio.create_task(harness.finish(replica, asked))
        await begun.wait()
        while not replica.view(asked).wakeup.has_waiters:  # noqa: ASYNC110, the reader has no event for it
            await asyncio.sleep(0)
        state = await reported(harness, replica, asked)
        assert (state.readers, [call.name for call in state.known_calls]) == (1, ["dig"])
        assert reasons(state)[0].startswith("The tool dig has been running for ")
        await harness.database.rows(NO_LEASE)
        assert reasons(await TurnStates(harness.database).of(asked.turn))[0].startswith(
            "The replica of the turn is dead"
        )
        go.set()
        await finishing


async def test_the_life_of_a_turn_is_a_table_from_rows(harness: Harness) -> None:
    async with harness.replica(ScriptedProvider([message_of(tool_use("pay", {}, "a"))]), [pay]) as replica:
        asked = await harness.ask(tools=[pay])
        await waits(harness, replica, asked)
    states = TurnStates(harness.database)
    assert reasons(await states.of(asked.turn)) == ["The turn waits for an approval of pay, 0 seconds by now."]
    life = await states.life(asked.turn)
    assert [event.what.split(":")[0] for event in life if "first text" not in event.what] == [
        "created",
        "claimed for the first time",
        "round 1 of attempt 1",
        "round 1 sealed by attempt 1",
        "waits for a person",
    ]
    (listed,) = await states.open(10)
    assert (listed.id, [ask.kind for ask in listed.asks]) == (asked.turn, ["approval"])


async def test_the_commands_list_open_turns_and_print_a_life(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = await harness.ask()
    monkeypatch.setattr("os.environ", clean_environment() | {"DATABASE_URL": harness.url})
    listed = await asyncio.to_thread(CliRunner().invoke, commands, ["turns"])
    head, row = (line.split("\t") for line in listed.stdout.splitlines())
    assert dict(zip(head, row, strict=True)) | {"age": "0"} == {
        "turn": str(asked.turn),
        "owner": "ada",
        "status": "queued",
        "age": "0",
        "attempt": "0",
        "replica": "-",
        "stage": "-",
        "silent": "-",
        "tools": "-",
        "readers": "0",
        "waits for": "a replica",
    }
    printed = await asyncio.to_thread(CliRunner().invoke, commands, ["why", str(asked.turn)])
    first, reason, _, created = printed.stdout.splitlines()
    assert first == f"queued, attempt 0, owner ada, chat {asked.chat}"
    assert reason.startswith("No replica claims turns: none is alive")
    assert created.endswith("\tcreated")
    await Queue(harness.database, new_id(), "here:1", 1).renew_lease(60)
    declining = Queue(harness.database, new_id(), "here:2", 2)
    await declining.renew_lease(60)
    await harness.database.rows(DECLINED, replica=declining.replica)
    printed = await asyncio.to_thread(CliRunner().invoke, commands, ["why", str(asked.turn)])
    assert printed.stdout.splitlines()[1:2] == ["declined by the replicas here:2, which lack its model or a tool"]
    assert "The turn is the next in the queue" in printed.stdout
    assert "replicas.gone" not in printed.stdout
    await harness.database.rows(INTERRUPTED)
    printed = await asyncio.to_thread(CliRunner().invoke, commands, ["why", str(asked.turn)])
    assert "The turn was taken over, after 1 interruption.\nThe log event `replicas.gone`" in printed.stdout


async def test_the_commands_judge_by_the_limit_of_the_replicas_and_not_by_their_own(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(database_url, owner_running_turns=1) as server:
        pause = Pause()
        model = server.scripts.model(pausing(pause, "Hel", "lo."))
        headers = {"authorization": f"Bearer {await server.token('ada')}"}
        async with httpx2.AsyncClient(base_url=server.url, trust_env=False, headers=headers) as http:
            for _ in range(2):
                await http.post("/api/turns", json={"blocks": [{"type": "text", "text": "Hi"}], "model": model})
            await pause.reached.wait()
            for most in ("", "0", "5"):
                monkeypatch.setattr(
                    "os.environ",
                    clean_environment() | {"DATABASE_URL": database_url, "TURNSTREAM_OWNER_RUNNING_TURNS": most},
                )
                listed = await asyncio.to_thread(CliRunner().invoke, commands, ["turns"])
                queued = next(line for line in listed.stdout.splitlines() if "\tqueued\t" in line)
                printed = await asyncio.to_thread(CliRunner().invoke, commands, ["why", queued.split("\t")[0]])
                assert "1 turn of the owner runs already: this is the limit." in printed.stdout, most
            pause.go.set()


@pytest.mark.parametrize(
    ("published", "given", "limit"),
    [((None,), 7, 7), (("", "2"), 7, None), (("1", "2"), 7, 2), (("3", None), None, 3), ((), None, None)],
    ids=str,
)
async def test_the_most_generous_replica_sets_the_limit(
    harness: Harness, published: tuple[str | None, ...], given: int | None, limit: int | None
) -> None:
    for number, most in enumerate(published):
        configuration = {} if most is None else {OWNER_RUNNING_TURNS: most}
        await Queue(harness.database, new_id(), f"here:{number}", number, configuration=configuration).renew_lease(60)
    gone = Queue(harness.database, new_id(), "gone:1", 9, configuration={OWNER_RUNNING_TURNS: "99"})
    await gone.renew_lease(-60)
    asked = await harness.ask()
    assert (await TurnStates(harness.database, given).of(asked.turn)).owner_limit == limit


async def test_the_owner_of_a_turn_asks_and_nobody_else(harness: Harness) -> None:
    """Over HTTP, row-level security hides rows from the caller. The server reads the hidden rows of this turn only."""
    async with serving(harness.url) as server:
        await _ask_why(server)


async def test_a_turn_of_an_agent_is_explained_down_to_the_person_it_waits_for(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead = agent_tool(Agent("lead", "Leads.", "Lead.", tools=("scout",)))
    scout = agent_tool(Agent("scout", "Scouts.", "Scout.", tools=("pay",)))
    async with serving(harness.url, Toolset([lead, scout, pay])) as server, Client(server.url) as api:
        calls = [call("lead", "a"), call("scout", "b"), tool_use("pay", {}, "c")]
        model = server.scripts.model(*map(message_of, calls), *(message_of(text("Done.")) for _ in calls))
        turn = await api.say(await api.chat(), model=model)
        while not (waiting := (await api.json("GET", "/api/waiting"))["calls"]):  # noqa: ASYNC110, rows have no event
            await asyncio.sleep(0.02)
        (root,) = (await api.json("GET", turn.url))["jobs"]
        leads = root["child"]
        (below,) = (await api.json("GET", f"/api/chats/{leads['chat']}/turns/{leads['turn']}"))["jobs"]
        scouts = below["child"]["turn"]
        of_scout = f"the job {below['id']} of the tool scout, on which the turn {scouts} works, which is waiting"
        of_lead = f"the job {root['id']} of the tool lead, on which the turn {leads['turn']} works, which is waiting"
        why = await api.json("GET", f"{turn.url}/why")
        (sentence,) = why["reasons"]
        begin = f"The turn waits for {of_lead}: The turn waits for {of_scout}: The turn waits for an approval of pay, "
        assert sentence.startswith(begin)
        assert any(f"tool lead runs as the job {root['id']}" in event["what"] for event in why["life"])
        monkeypatch.setattr("os.environ", clean_environment() | {"DATABASE_URL": harness.url})
        printed = await asyncio.to_thread(CliRunner().invoke, commands, ["why", turn.assistant["id"]])
        assert begin in printed.stdout
        shown: dict[str, list[str]] = {}
        # The server refreshes the overview every two seconds.
        while not shown.get(turn.assistant["id"], [""])[0].startswith(begin):
            now = (await api.json("GET", "/api/admin/overview"))["now"]
            shown = {each["id"]: each["reasons"] for each in now["turns"]}
            await asyncio.sleep(0.05)
        assert shown[scouts][0].startswith("The turn waits for an approval of pay, ")
        asking = f"/api/chats/{waiting[0]['chat']}/turns/{scouts}"
        (asked,) = (await api.json("GET", asking))["actions"]
        approval = {"type": "approve", "tool_use_id": asked["tool_use_id"], "input_digest": asked["input_digest"]}
        await api.json("POST", f"{asking}/actions", 202, json={"actions": [approval]})
        await api.events(turn.stream_url)
        assert (await api.json("GET", f"{turn.url}/why"))["reasons"] == ["The turn has ended: end_turn"]


async def _ask_why(server: Server) -> None:
    tokens = {owner: await server.token(owner) for owner in ("ada", "bob")}
    pause = Pause()
    model = server.scripts.model(pausing(pause, "Hel", "lo."))
    async with httpx2.AsyncClient(base_url=server.url, trust_env=False) as http:
        ada = {"authorization": f"Bearer {tokens['ada']}"}
        body = {"blocks": [{"type": "text", "text": "Hi"}], "model": model}
        turn = (await http.post("/api/turns", json=body, headers=ada)).json()["assistant_turn"]
        await pause.reached.wait()
        url = f"/api/chats/{turn['chat_id']}/turns/{turn['id']}/why"
        why = (await http.get(url, headers=ada)).json()
        assert (why["status"], why["life"][0]["what"]) == ("running", "created")
        assert why["reasons"]
        bob = {"authorization": f"Bearer {tokens['bob']}"}
        assert (await http.get(url, headers=bob)).status_code == 404
        user = f"/api/chats/{turn['chat_id']}/turns/{turn['parent_id']}/why"
        assert (await http.get(user, headers=ada)).status_code == 404
        pause.go.set()

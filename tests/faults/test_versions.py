"""A deploy with a migration: servers of the previous version run beside servers of this version, in one cell and in
two.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import asyncpg
import pytest

from tests.faults.model import Model, model_api
from tests.faults.replicas import ROOT, Replica, replica_with
from tests.faults.two_versions import KINDS, Version, script, two_versions
from tests.faults.version_before import NoHistory, VersionBefore, unpack_version_before
from tests.integration.test_migrations import take_to
from tests.support.http_client import Client, Json, said, turn_url
from tests.support.owner_rows import rows_of
from turnstream.engine.tool_gate import OUTCOME_UNKNOWN
from turnstream.storage.migrations import downgrade_in_thread, newest_revision, oldest_in_versions, present_revision

pytestmark = [pytest.mark.timeout(240), pytest.mark.needs("git")]

# Tables in which servers write without any request.
BUSY = (
    *("activity", "journal_ticks", "open_text", "replicas", "sweeps"),
    *("search_backlog", "search_chats", "search_pending", "search_segments", "search_texts"),
)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> VersionBefore:
    try:
        return unpack_version_before(tmp_path_factory.mktemp("before"))
    except NoHistory as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize(("victim", "survivor"), [("old", "new"), ("new", "old")])
async def test_two_versions_take_over_turns_of_each_other_without_a_loss_or_repetition(
    before: VersionBefore, empty_database_url: str, tmp_path: Path, victim: Version, survivor: Version
) -> None:
    async with two_versions(before, empty_database_url, tmp_path) as it:
        await it.begin("old", "before the migration")
        await it.deploy()
        assert await present_revision(empty_database_url) == newest_revision() > before.revision
        await it.begin("old", "after it")
        await it.begin("new", "after it")
        for version in it.replicas:
            it.read(version)
        await it.end("ends", "agrees", allowed_at=survivor)
        await it.kill(victim, survivor)
        await it.end("talks", "acts", "asks", allowed_at=survivor)
        await it.check_all()


async def test_lists_searches_and_cursors_of_one_version_are_good_at_the_other(
    before: VersionBefore, empty_database_url: str, tmp_path: Path
) -> None:
    async with two_versions(before, empty_database_url, tmp_path) as it:
        await it.deploy()
        await it.begin("old", "after the migration")
        await it.begin("new", "after it")
        await it.check_lists()
        await it.check_feeds()
        for version in it.replicas:
            it.read(version)
        await it.end(*KINDS, "calm", allowed_at="new")
        await it.check_all()


async def test_a_deploy_is_taken_back_while_turns_run_on_the_version_before(
    before: VersionBefore, empty_database_url: str, tmp_path: Path
) -> None:
    """The older version continues beside a newer version. But it starts only with its own tables, and logs why it does
    not start.
    """
    async with two_versions(before, empty_database_url, tmp_path) as it:
        await it.begin("old", "before the migration")
        await it.deploy()
        await it.begin("new", "after it")
        for version in it.replicas:
            it.read(version)
        await it.end("ends", "agrees", allowed_at="old")
        await it.terminate("new")
        replaced = it.replicas["new"]
        with pytest.raises(AssertionError, match="the server ended with 1"):
            await replaced.start(PYTHONPATH=before.python_path)
        assert await replaced.ended() == 1
        assert "turnstream migrate --to" in replaced.logs
        await downgrade_in_thread(empty_database_url, before.revision)
        await replaced.start()
        await before.check_revision(empty_database_url)
        await it.end("talks", "acts", "asks", allowed_at="old")
        await it.begin("new", "after it was taken back")
        await it.end(*KINDS, allowed_at="new")
        await it.check_lists()
        await it.check_all()


@pytest.mark.extensions("agents", "http_tools")
@pytest.mark.parametrize(("victim", "survivor"), [("old", "new"), ("new", "old")])
async def test_families_with_a_budget_that_two_versions_run_end_by_it_and_their_calls_run_once(
    before: VersionBefore, empty_database_url: str, tmp_path: Path, victim: Version, survivor: Version
) -> None:
    """Versions that have no budgets of families count the use of each agent separately."""
    budget = 90  # tokens; each round uses fifteen

    def tools(model: Model) -> str:
        return f"""
            [agents.scout]
            description = "Scouts."
            prompt = "Scout."
            tools = ["act"]

            [http.act]
            description = "Acts."
            url = "{model.url}/effect"
            internal = true
            input_schema = {{ type = "object", properties = {{ word = {{ type = "string" }} }} }}
        """

    async with two_versions(before, empty_database_url, tmp_path, tools) as it:
        it.model.open("effect")

        async def post(at: Version, words: str) -> Json:
            asked = {**said(f"leads {words}"), "limits": {"budget_tokens": budget}}
            return cast("Json", await it.clients[at].json("POST", "/api/turns", 201, json=asked))

        posted = [await post("old", "before the migration")]
        await it.model.until_reached("scouts", 1)
        await it.replicas["new"].start()
        posted += [await post("old", "after it, at the old version"), await post("new", "after it, at the new version")]
        await it.model.until_reached("scouts", 3)
        await it.replicas[victim].kill()
        posted.append(await post(survivor, "after the kill"))
        it.model.open("scouts")
        client = it.clients[survivor]
        ends = []
        for each in posted:
            await client.events(each["stream_url"])
            turn = await client.json("GET", turn_url(each["assistant_turn"]))
            (child,) = [block["data"] for block in turn["blocks"] if block["type"] == "tool_result"]
            agent = await client.json("GET", f"/api/chats/{child['chat']}/turns/{child['turn']}")
            assert (agent["status"], agent["error"]["type"]) == ("error", "budget")
            assert (turn["error"] or {"type": "budget"})["type"] == "budget"
            ends.append((turn["status"], sum((*turn["usage"].values(), *agent["usage"].values()))))
        # A killed call is charged with the tokens of its request, which appear in no usage.
        assert all(budget / 2 < used <= 2 * budget for _, used in ends), ends
        if survivor == "new":
            assert ends[-1] == ("error", budget), "the last family was of this version alone"
        assert set(it.model.effects.values()) == {1}


_REPORTED = (
    "[Result of the call {call} of the tool dig, which ran in the background. The tool has returned it;"
    " the user has not written it.]\n\nok"
)


async def test_calls_report_when_the_version_before_is_gone_and_a_downgrade_leaves_it_no_report(
    empty_database_url: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    try:
        before = unpack_version_before(tmp_path_factory.mktemp("before"), "reports")
    except NoHistory as reason:
        pytest.skip(str(reason))
    async with two_versions(before, empty_database_url, tmp_path, FAULTS_DIG="1") as it:
        old, new = it.clients["old"], it.clients["new"]
        await it.replicas["new"].start()
        beside = await new.say(await new.chat(), "digs beside")
        await until_status(new, beside.url, "waiting")
        it.model.open("effect", ["digs beside"])
        stored = await until_status(new, beside.url, "complete")
        assert ([block["text"] for block in stored["blocks"][1:]], stored["reports"]) == (["ok", "It is done."], [])

        await it.terminate("old")
        told, lost, settled = [await new.ask(await new.chat(), f"digs {word}") for word in ("told", "lost", "settled")]
        asks = await new.say(await new.chat(), "digs and asks")
        await until_status(new, asks.url, "waiting")
        it.model.open("effect", ["digs told", "digs and asks"])
        started, steered = await until_delivered(new, told.url), await until_delivered(new, asks.url)
        assert (steered["turn"], steered["round"]) == (asks.assistant["id"], None)
        second = f"{told.url.rpartition('/')[0]}/{started['turn']}"
        log = await new.events(f"{second}/stream")
        assert [each.name for each in log[:5]] == [
            *("turn_start", "block_start", "block_delta", "block_stop", "round_start")
        ]
        assert (log[1].data["type"], log[3].data["data"]["tool_use_id"]) == (
            "report",
            told.assistant["blocks"][0]["id"],
        )
        await it.model.until_reached("effect", 5)
        await it.replicas["new"].kill()

        connection = await asyncpg.connect(empty_database_url)
        end = '{"outcome": {"text": "found", "kind": "ok", "is_error": false, "whole": null, "data": {"depth": 6}}}'
        await connection.execute(
            "UPDATE jobs SET outcome = $1, settled_at = now(), replica = NULL WHERE turn_id = $2",
            *(end, settled.assistant["id"]),
        )
        await downgrade_in_thread(empty_database_url, oldest_in_versions())
        await take_to(before.revision, empty_database_url, tmp_path_factory.mktemp("further back"))
        await before.check_revision(empty_database_url)
        (row,) = await connection.fetch("SELECT turn_id, blocks FROM steers WHERE taken_at IS NULL")
        await connection.close()
        (said,) = json.loads(row["blocks"])
        assert (str(row["turn_id"]), said["type"]) == (asks.assistant["id"], "user_text")
        assert said["text"] == _REPORTED.format(call=steered["tool_use_id"])
        await it.replicas["old"].start()
        blocks = (await old.json("GET", second))["blocks"]
        assert [(block["type"], block["text"]) for block in blocks] == [
            ("user_text", _REPORTED.format(call=started["tool_use_id"])),
            ("text", "It is done."),
        ]
        results = [(await old.json("GET", each.url))["blocks"][1] for each in (lost, settled)]
        assert [(block["text"], block["is_error"]) for block in results] == [(OUTCOME_UNKNOWN, True), ("found", False)]
        assert results[1]["data"] == {"depth": 6}
        for each in (told, lost, settled):
            calm = await old.ask(each.url.rpartition("/turns")[0], "calm after all")
            assert calm.assistant["status"] == "complete", calm.assistant["error"]


async def until_status(client: Client, url: str, status: str) -> Json:
    while (turn := await client.json("GET", url))["status"] != status:
        assert turn["status"] != "error", turn["error"]
        await asyncio.sleep(0.05)
    found: Json = turn
    return found


async def until_delivered(client: Client, url: str) -> Json:
    while (report := (await client.json("GET", url))["reports"][0])["delivery"] is None:  # noqa: ASYNC110, as above
        await asyncio.sleep(0.05)
    found: Json = report
    return found


@dataclass(frozen=True)
class Cell:
    name: str
    database_url: str
    owner: str
    replica: Replica

    async def token(self) -> str:
        _, printed = await self.replica.turnstream("tokens", "create", f"token of {self.owner}", "--owner", self.owner)
        return next(word for word in printed.split() if word.startswith(f"ts_{self.name}_"))

    async def move_owner(self, to: "Cell") -> tuple[int | None, str]:
        """Moves the owner, with the command of this version."""
        move = ("owners", "move", self.owner, "--to", to.name, "--url", to.database_url)
        return await self.replica.turnstream(*move, PYTHONPATH=str(ROOT))

    async def cell_of(self, token: str) -> tuple[int, str | None]:
        """Returns the status of a request, and the cell that the answer names."""
        async with Client(self.replica.url, token=token) as client:
            answer = await client.get("/api/chats")
        return answer.status_code, answer.headers.get("turnstream-cell")

    async def rows(self) -> dict[str, list[str]]:
        return await rows_of(self.database_url, without=BUSY)


@asynccontextmanager
async def two_cells(before: VersionBefore, urls: Sequence[str], folder: Path) -> AsyncIterator[tuple[Cell, Cell]]:
    """Yields two cells. The first cell has the previous version."""
    async with model_api(script) as model:
        old = replica_with(urls[0], folder, model, {"TURNSTREAM_CELL": "07", "PYTHONPATH": before.python_path})
        new = replica_with(urls[1], folder, model, {"TURNSTREAM_CELL": "08"})
        try:
            await asyncio.gather(old.start(), new.start())
            await before.check_revision(urls[0])
            yield Cell("07", urls[0], "ada", old), Cell("08", urls[1], "bob", new)
        finally:
            await old.close()
            await new.close()


@pytest.mark.extensions("cells")
async def test_cells_of_two_versions_work_beside_each_other_and_an_owner_moves_when_both_are_of_one(
    before: VersionBefore, empty_database_url: str, database_url: str, tmp_path: Path
) -> None:
    async with two_cells(before, (empty_database_url, database_url), tmp_path) as (old, new):
        of_old, of_new = await old.token(), await new.token()
        assert [await cell.cell_of(of_old) for cell in (old, new)] == [(200, None), (421, "07")]
        assert [await cell.cell_of(of_new) for cell in (old, new)] == [(421, "08"), (200, None)]
        said = []
        for cell, token in ((old, of_old), (new, of_new)):
            async with Client(cell.replica.url, token=token) as client:
                said.append(await client.ask(await client.chat(), f"calm words in {cell.name}"))
        before_moves = [await cell.rows() for cell in (old, new)]
        for cell, other in ((old, new), (new, old)):
            code, printed = await cell.move_owner(other)
            assert code == 1, printed
            assert f"that of the command is {newest_revision()}. Nothing was moved. Upgrade" in printed
        assert [await cell.rows() for cell in (old, new)] == before_moves
        await before.check_revision(old.database_url)

        await old.replica.restart(PYTHONPATH=str(ROOT))
        code, printed = await old.move_owner(new)
        assert code == 0, printed
        while (refused := await old.cell_of(of_old)) == (200, None):  # noqa: ASYNC110, it looks at the moves by itself
            await asyncio.sleep(0.05)
        assert (refused, await new.cell_of(of_old)) == ((421, "08"), (200, None))
        for turn, token in zip(said, (of_old, of_new), strict=True):
            async with Client(new.replica.url, token=token) as client:
                members: dict[str, object] = {"jobs": [], "reports": [], "author": None}  # only this version has these
                assert await client.json("GET", turn.url) == members | turn.assistant

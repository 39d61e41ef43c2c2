"""The cache of tool results: until a result expires, later turns of its owner use it instead of a new call."""

from typing import Any

from tests.support.harness import OWNER, Harness, results_of
from tests.support.pictures import PIXEL
from tests.support.sweeping import swept
from turnstream.domain.degraded import degraded
from turnstream.domain.turns import Turn
from turnstream.engine.hooks import AfterTool, BeforeTool, Hooks
from turnstream.extensions.tool_results.cache import cache_key
from turnstream.extensions.tool_results.rows import CachedResult, ToolCache
from turnstream.scripted import ScriptedProvider, message_of, text, tool_use
from turnstream.storage.database import Statement
from turnstream.tools.tool import File, ToolError, ToolResult, tool, tools_of
from turnstream.tools.toolset import Toolset

COUNT = Statement("SELECT count(*) AS rows FROM tool_cache")
EXPIRE = Statement("UPDATE tool_cache SET expires_at = now() RETURNING key")
AGE = Statement("UPDATE tool_cache SET stored_at = stored_at - interval '90 seconds' RETURNING key")


class Desk(Hooks):
    """Tools that record which calls were executed."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.hooks: list[str] = []

    @tool(read_only=True, cache_seconds=60)
    async def tide(self, place: str, day: int = 1) -> ToolResult:
        """The tide at a place."""
        self.calls.append(place)
        return ToolResult(f"High at {place} on day {day}.", {"number": len(self.calls)})

    @tool(read_only=True, cache_seconds=60, retries=0)
    async def broken(self) -> str:
        """Fails."""
        self.calls.append("broken")
        raise ToolError("no")

    @tool(read_only=True, cache_seconds=60)
    async def picture(self) -> File:
        """A picture."""
        self.calls.append("picture")
        return File(PIXEL)

    @tool(read_only=True, cache_seconds=60, max_result_chars=10)
    async def long(self) -> str:
        """Much."""
        self.calls.append("long")
        return "0123456789abcdef"

    @tool(read_only=True, cache_seconds=60, retries=0, fallback="tide_table")
    async def tide_now(self, place: str) -> str:
        """The tide now."""
        self.calls.append("tide_now")
        raise ToolError("no")

    @tool(read_only=True)
    async def tide_table(self, place: str) -> str:
        """The tide as printed."""
        return f"printed for {place}"

    async def before_tool(self, event: BeforeTool) -> None:
        self.hooks.append("before")

    async def after_tool(self, event: AfterTool) -> None:
        self.hooks.append("after")


async def turns(harness: Harness, desk: Desk, *calls: tuple[str, dict[str, Any]]) -> list[Turn]:
    """Runs one turn for each call, each in its own chat."""
    replies = [
        reply
        for place, (name, given) in enumerate(calls)
        for reply in (message_of(tool_use(name, given, f"toolu_{place}")), message_of(text("So.")))
    ]
    async with harness.replica(ScriptedProvider(replies), toolset=Toolset(tools_of(desk)), hooks=[desk]) as replica:
        return [await harness.finish(replica, await harness.ask(tools=tools_of(desk))) for _ in calls]


async def test_a_later_turn_has_the_answer_with_its_age_and_no_tool_runs(harness: Harness) -> None:
    desk = Desk()
    first, second = await turns(
        harness, desk, ("tide", {"place": "Brest", "day": 2}), ("tide", {"day": 2, "place": "Brest"})
    )
    (before,), (again,) = results_of(first).values(), results_of(second).values()
    assert (again.text, again.client_data) == (before.text, before.client_data) == (before.text, '{"number":1}')
    assert desk.calls == ["Brest"]
    assert desk.hooks == ["before", "after"]
    assert again.notes is not None
    assert again.notes.startswith('{"cached":0.')
    assert degraded(second) == ()


async def test_another_input_and_another_owner_and_an_expired_answer_need_a_new_call(harness: Harness) -> None:
    desk = Desk()
    brest: tuple[str, dict[str, Any]] = ("tide", {"place": "Brest"})
    await turns(harness, desk, brest, ("tide", {"place": "Roscoff"}))
    assert desk.calls == ["Brest", "Roscoff"]
    key = cache_key(Toolset(tools_of(desk)), "tide", '{"place": "Brest"}', [desk.tide.spec])
    assert key is not None
    cache = ToolCache(harness.database)
    assert await cache.get("bob", key) is None
    await harness.database.rows(AGE)
    found = await cache.get(OWNER, key)
    assert found is not None
    assert 90 <= found.age < 100
    await harness.database.rows(EXPIRE)
    await turns(harness, desk, brest)
    assert desk.calls == ["Brest", "Roscoff", "Brest"]


async def test_failures_files_and_the_answers_of_other_tools_are_not_kept(harness: Harness) -> None:
    desk = Desk()
    calls: list[tuple[str, dict[str, Any]]] = [("broken", {}), ("picture", {}), ("tide_now", {"place": "Brest"})]
    await turns(harness, desk, *calls, *calls)
    assert desk.calls == ["broken", "picture", "tide_now"] * 2
    row = await harness.database.row(COUNT)
    assert row is not None
    assert row["rows"] == 0


async def test_a_kept_answer_is_cut_for_its_own_call(harness: Harness) -> None:
    desk = Desk()
    first, second = await turns(harness, desk, ("long", {}), ("long", {}))
    assert desk.calls == ["long"]
    (whole,), (again,) = results_of(first).values(), results_of(second).values()
    assert again.text == whole.text
    assert "6 of its 16 characters are missing" in again.text


async def test_each_owner_has_so_many_rows_and_bytes_and_the_oldest_go_first(harness: Harness) -> None:
    cache = ToolCache(harness.database, rows=3, bytes=100)

    async def put(number: int, text: str, owner: str = OWNER) -> None:
        await cache.put(owner, bytes([number]) * 32, "tide", CachedResult(text), 60)

    async def kept() -> list[int]:
        return [number for number in range(9) if await cache.get(OWNER, bytes([number]) * 32)]

    await put(8, "another's", "bob")
    for number in range(4):
        await put(number, "x")
    assert await kept() == [1, 2, 3]
    await put(4, "y" * 99)
    assert await kept() == [3, 4]
    await put(5, "z" * 101)
    assert await kept() == [3, 4], "a result that is larger than all of the room is not kept"
    assert await cache.get("bob", bytes([8]) * 32) is not None
    assert await swept(cache.sweep()) == 0
    await harness.database.rows(EXPIRE)
    assert await swept(cache.sweep()) == 3


def test_only_calls_whose_tool_declares_it_have_a_key() -> None:
    desk = Desk()
    tools = Toolset(tools_of(desk))
    offered = tools.specs()
    assert cache_key(tools, "tide_table", '{"place": "Brest"}', offered) is None
    assert cache_key(tools, "tide", "no JSON", offered) is None
    assert cache_key(tools, "nothing", "{}", offered) is None
    assert cache_key(tools, "tide", "{}", []) is None

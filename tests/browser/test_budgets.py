"""Limits for the page's size and speed, and checks of its accessibility."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin
from uuid import UUID

import pytest
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]
from playwright.async_api import Route, expect

from tests.browser.conftest import SitDown
from tests.browser.person import Person
from tests.browser.scenes import Harbour, one_call, paused, three_calls
from tests.browser.test_talk import use
from tests.support.http_client import Client
from tests.support.http_server import Server
from turnstream.llm.models.catalog import ProviderModels
from turnstream.scripted import Pause, ScriptedProvider, message_of, text

pytestmark = pytest.mark.asyncio(loop_scope="session")

_PAINTED = """() => new Promise((resolve) =>
  new PerformanceObserver((list) => list.getEntriesByName('first-contentful-paint').length && resolve())
    .observe({ type: 'paint', buffered: true }))"""

PROSE = "The **tide** rises for `six` hours, and [falls](https://example.org) for six more. "


async def test_the_page_is_light(people: SitDown, site: Server) -> None:
    ada = await people(f"{site.url}/static/theme.js")
    ada.expects("favicon")
    session = await ada.context.new_cdp_session(ada.page)
    weights: list[float] = []
    await session.send("Network.enable")
    session.on("Network.loadingFinished", lambda event: weights.append(event["encodedDataLength"]))
    await ada.page.goto(site.url)
    await ada.ready()
    assert sum(weights) < 200_000
    assert len(weights) > 20


async def test_there_is_something_to_see_before_the_server_has_answered_a_call(people: SitDown, site: Server) -> None:
    ada = await people(f"{site.url}/static/theme.js")
    ada.expects("favicon")
    answer = asyncio.Event()

    async def hold(route: Route) -> None:
        await answer.wait()
        await route.continue_()

    await ada.page.route("**/api/**", hold)
    await ada.page.goto(site.url)
    await ada.page.get_by_text("What would you like to know?").wait_for()
    await ada.page.evaluate(_PAINTED)
    await ada.page.fill("#words", "Already writing")
    answer.set()
    await ada.ready()
    assert await ada.page.input_value("#words") == "Already writing"


async def test_the_page_can_be_installed(people: SitDown, site: Server, api: Client) -> None:
    ada = await people(site.url)
    session = await ada.context.new_cdp_session(ada.page)
    manifest = await session.send("Page.getAppManifest")
    assert manifest["errors"] == []
    found = json.loads(manifest["data"])
    assert urljoin(manifest["url"], found["start_url"]) == f"{site.url}/"
    for picture in found["icons"]:
        answer = await api.get(urljoin(manifest["url"], picture["src"]))
        assert answer.headers["content-type"] == picture["type"]


async def test_a_fetched_file_is_not_fetched_again(people: SitDown, site: Server, api: Client) -> None:
    ada = await people(site.url)
    fetched: list[str] = []
    ada.page.on("response", lambda response: fetched.append(response.url) if "/static/" in response.url else None)
    script = await ada.page.get_attribute("script[type=module]", "src")
    answer = await api.get(str(script))
    assert "immutable" in answer.headers["cache-control"]
    again = await api.get("/static/turnstream.js", headers={"If-None-Match": "W/x"})
    assert again.headers["cache-control"] == "no-cache"
    same = await api.get("/static/turnstream.js", headers={"If-None-Match": again.headers["etag"]})
    assert same.status_code == 304
    assert (await api.get("/static/../page.py")).status_code == 404


async def test_the_policy_lets_nothing_run_that_is_not_ours(people: SitDown, site: Server, api: Client) -> None:
    policy = (await api.get("/")).headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    ada = await people(site.url)
    ada.expects("Content Security Policy", "TrustedHTML", "TrustedScript")
    await ada.page.evaluate(
        """() => {
          const script = document.createElement('script')
          script.append('window.harmed = true')
          try { document.head.append(script) } catch {}
          try { document.body.insertAdjacentHTML('beforeend', '<b>x</b>') } catch {}
        }"""
    )
    assert await ada.page.evaluate("window.harmed") is None


# --- accessibility ---


async def violations(ada: Person) -> list[Any]:
    found = await Axe().run(ada.page)
    return [(one["id"], one["help"], [node["target"] for node in one["nodes"]]) for one in found.response["violations"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_in_any_state(
    people: SitDown, site: Server, api: Client, harbour: Harbour, scheme: str
) -> None:
    markdown = "# One\n\n- a\n- b\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```js\nlet a = 'b' // c\n```\n\n> quote"
    replies = (three_calls(), message_of(text(markdown)), one_call("book_berth", {"port": "x", "nights": 1}, "call-2"))
    ada = await people(site.url, color_scheme=scheme)
    assert await violations(ada) == []
    await ada.open(await use(api, site.scripts.model(*replies), "A title"))
    await ada.say("When?")
    await ada.page.locator(".card[data-state=failed]").wait_for()
    assert await violations(ada) == []
    harbour.open.set()
    await ada.sees_end()
    await ada.press("Timeline")
    await ada.page.locator(".timeline tbody th").first.wait_for()
    await ada.say("Book")
    await ada.page.locator(".ask").wait_for()
    assert await violations(ada) == []
    await ada.press("Model and settings")
    await ada.page.locator("#tools label").first.wait_for()
    assert await violations(ada) == []
    await ada.page.keyboard.press("Escape")
    await ada.press("Documents")
    assert await violations(ada) == []


async def test_a_screen_reader_announces_the_beginning_and_end_of_an_answer_and_not_every_word(
    people: SitDown, site: Server, api: Client
) -> None:
    pause = Pause()
    ada = await people(
        site.url, await use(api, site.scripts.model(paused(pause, *(f"word {n} " for n in range(300)), after=100)))
    )
    await ada.page.evaluate(
        """() => {
          window.told = []
          const note = () => window.told.push(document.querySelector('#announcements').textContent)
          new MutationObserver(note).observe(document.querySelector('#announcements'), { childList: true })
        }"""
    )
    await ada.say("Talk")
    await ada.sees("word 9")
    pause.go.set()
    await ada.sees_end()
    told = await ada.page.evaluate("[...new Set(window.told)]")
    assert told == ["Answering", "The answer is complete"]
    assert await ada.page.evaluate("window.told.length") <= 4


async def test_the_page_fits_a_phone(people: SitDown, site: Server, api: Client, harbour: Harbour) -> None:
    harbour.open.set()
    wide = "| " + " | ".join("column" for _ in range(20)) + " |\n" + "|---" * 20 + "|\n\n`" + "x" * 300 + "`"
    ada = await people(
        site.url,
        await use(api, site.scripts.model(three_calls(), message_of(text(wide)))),
        viewport={"width": 360, "height": 700},
        has_touch=True,
        is_mobile=True,
    )
    await ada.page.fill("#words", "When?")
    await ada.page.press("#words", "Enter")  # a touch keyboard has no Shift + Enter, so Enter adds a line
    assert await ada.page.input_value("#words") == "When?\n"
    await ada.press("Send")
    await ada.sees_end()
    await expect(ada.page.locator("#keys")).to_be_hidden()
    assert await ada.page.evaluate("document.documentElement.scrollWidth") == 360
    assert await ada.page.evaluate("document.querySelector('#transcript').scrollWidth") <= 360
    await ada.press("Chats")
    await ada.page.get_by_role("link", name="When?").click()
    await ada.page.locator("#sidebar").wait_for(state="hidden")


_SHIFTS = """() => {
  window.shifts = []
  new PerformanceObserver((list) => window.shifts.push(...list.getEntries().map((entry) => entry.value)))
    .observe({ type: 'layout-shift' })
}"""


async def test_nothing_jumps_while_an_answer_is_written(
    people: SitDown, site: Server, api: Client, harbour: Harbour, record_property: Any
) -> None:
    harbour.open.set()
    code = "```js\nlet tide = 'high'\n```\n\n- one\n- two\n\n"
    pieces = [*(PROSE + "\n\n" for _ in range(20)), *code, *(PROSE + "\n\n" for _ in range(20))]
    ada = await people(site.url, await use(api, site.scripts.model(three_calls(), message_of(text(*pieces)))))
    await ada.page.evaluate(_SHIFTS)
    await ada.say("Talk")
    await ada.sees_end()
    shifted = await ada.page.evaluate("window.shifts.reduce((sum, shift) => sum + shift, 0)")
    record_property("layout shifts of an answer", round(shifted, 3))
    assert shifted < 0.1


# --- speed -----------------------------------------------------------------------------------------------------------


async def _busy_share(ada: Person, site: Server, api: Client, deltas: int, words_before: int) -> float:
    """Returns the seconds of processor time that the main thread uses for one second with two hundred deltas."""
    begin = Pause()
    pauses = [Pause() for _ in range(deltas)]
    steps = list(paused(begin, "\n\n".join([PROSE * 5] * (words_before // 70 + 1)), *["word "] * deltas))
    start = steps.index(begin) + 1
    for place, pause in enumerate(pauses):
        steps.insert(start + 2 * place, pause)
    await ada.open(await use(api, site.scripts.model(steps)))
    await ada.say("Talk")
    await begin.reached.wait()
    await ada.sees("The tide rises")
    session = await ada.context.new_cdp_session(ada.page)
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})  # `threadTicks` excludes other processes
    before = await _metrics(session)
    begin.go.set()
    loop = asyncio.get_running_loop()
    started = loop.time()
    for place, pause in enumerate(pauses):
        await asyncio.sleep(max(0, started + place / 200 - loop.time()))
        pause.go.set()
    after = await _metrics(session)
    await ada.sees_end()
    return (after["TaskDuration"] - before["TaskDuration"]) / (deltas / 200)


async def test_turns_out_of_sight_are_not_drawn_and_nothing_moves_when_they_are(
    people: SitDown, site: Server, api: Client
) -> None:
    words = "\n\n".join([PROSE * 3] * 4)
    site.scripts.offers.append(ProviderModels(ScriptedProvider(lambda _: message_of(text(words))), ["wordy"]))
    chat = await use(api, "wordy")
    for number in range(12):
        await api.ask(f"/api/chats/{chat}", f"Question {number}")
    ada = await people(site.url, chat)
    await expect(ada.page.locator("#turns .turn.drawn")).to_have_count(24)
    is_drawn = "(turn) => turn.querySelector('.content > *').checkVisibility({ contentVisibilityAuto: true })"
    drawn = [await turn.evaluate(is_drawn) for turn in await ada.page.locator("#turns .turn").all()]
    assert drawn[0] is False
    assert drawn[-1] is True
    assert sum(drawn) < 12
    height = "document.querySelector('#transcript').scrollHeight"
    before = await ada.page.evaluate(height)
    await ada.page.locator("#turns .turn").first.scroll_into_view_if_needed()
    await ada.page.wait_for_function(f"() => ({is_drawn})(document.querySelector('#turns .turn'))")
    assert await ada.page.evaluate(height) == before


async def _open_long(people: SitDown, site: Server, api: Client, turns: int) -> tuple[Person, int, list[str]]:
    """Opens a chat with `turns` turns. Returns the person, the number of displayed elements, and the requests."""
    spoken = [
        {"role": "user", "content": "And then?"},
        {"role": "assistant", "content": f"{PROSE * 3}\n\n- one\n- two"},
    ]
    made = await api.json("POST", "/v1/conversations", json={"items": spoken * (turns // 2)})
    ada = await people(f"{site.url}/static/theme.js")
    ada.expects("favicon")
    read: list[str] = []
    ada.page.on("request", lambda request: read.append(request.url) if "/turns" in request.url else None)
    await ada.page.goto(f"{site.url}/#{UUID(made['id'].removeprefix('conv_'))}")
    await ada.ready()
    await expect(ada.page.locator("#turns .turn.drawn")).to_have_count(min(turns, 100))
    return ada, await ada.page.evaluate("document.querySelectorAll('#turns *').length"), read


@pytest.mark.full
@pytest.mark.extensions("openai_api")
async def test_a_chat_of_a_thousand_turns_costs_the_page_no_more_than_one_of_a_hundred(
    people: SitDown, site: Server, api: Client
) -> None:
    """Compares counts instead of times: requests, and elements for layout."""
    _, elements_of_hundred, reads_of_hundred = await _open_long(people, site, api, 100)
    ada, elements, reads = await _open_long(people, site, api, 1_000)
    assert (elements, len(reads)) == (elements_of_hundred, len(reads_of_hundred))
    await ada.press("Earlier turns")
    await expect(ada.page.locator("#turns .turn.drawn")).to_have_count(200)
    assert len(reads) == len(reads_of_hundred) + 1


_SKIPPABLE = "(parts) => parts.filter((part) => getComputedStyle(part).contentVisibility === 'auto').length"


@dataclass
class _Stream:
    """An answer on a page. The answer grows by one word each time the test asks for it."""

    ada: Person
    session: Any
    words: Iterator[Pause]

    async def cost_of(self, words: int) -> float:
        """Returns the seconds of processor time that the main thread uses for `words` words, each drawn separately."""
        shown = "() => document.querySelector('#turns').lastChild.lastChild.firstChild.textContent.trimEnd().length"
        before = await _metrics(self.session)
        for _ in range(words):
            length = await self.ada.page.evaluate(shown)
            next(self.words).go.set()
            await self.ada.page.wait_for_function(f"(length) => ({shown})() > length", arg=length)
        return (await _metrics(self.session))["TaskDuration"] - before["TaskDuration"]


async def _stream_behind(people: SitDown, site: Server, api: Client, turns: int) -> _Stream:
    """Opens a chat with `turns` turns, displays all of them, and starts an answer after them."""
    ada, _, _ = await _open_long(people, site, api, turns)
    for shown in range(200, turns + 1, 100):
        await ada.press("Earlier turns")
        await expect(ada.page.locator("#turns .turn.drawn")).to_have_count(shown)
    begin, *pauses = [Pause() for _ in range(41)]
    steps = list(paused(begin, "It begins. ", *["word "] * 40))
    start = steps.index(begin) + 1
    for place, pause in enumerate(pauses):
        steps.insert(start + 2 * place, pause)
    model = site.scripts.model(steps)
    await api.json("PATCH", f"/api/chats/{ada.chat}", json={"settings": {"model": model}})
    await ada.say("Talk")
    await begin.reached.wait()
    await ada.sees("It begins.")
    begin.go.set()
    session = await ada.context.new_cdp_session(ada.page)
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})
    return _Stream(ada, session, iter(pauses))


@pytest.mark.full
@pytest.mark.timeout(240)
async def test_an_answer_behind_a_thousand_turns_on_the_page_costs_little_more_than_behind_twenty(
    people: SitDown, site: Server, api: Client, record_property: Any
) -> None:
    """The number of elements with `content-visibility: auto` is limited, too, because the browser checks all of them in
    each frame.
    """
    few, many = [await _stream_behind(people, site, api, turns) for turns in (20, 1_000)]
    assert 40 < await many.ada.page.locator(":is(.group, .turn)").evaluate_all(_SKIPPABLE) < 100
    costs = [(await few.cost_of(8), await many.cost_of(8)) for _ in range(5)]
    # The minimum of each cost is compared, because other programs also use the processor's caches, which can only
    # increase a cost.
    of_few, of_many = map(min, zip(*costs, strict=True))
    ratio = of_many / of_few
    record_property("main thread behind a thousand turns, of that behind twenty", round(ratio, 2))
    assert ratio < 2  # the ratio is usually 1.1 to 1.5


async def _metrics(session: Any) -> dict[str, float]:
    return {one["name"]: one["value"] for one in (await session.send("Performance.getMetrics"))["metrics"]}


async def test_two_hundred_deltas_a_second_leave_the_main_thread_half_idle(
    people: SitDown, site: Server, api: Client, record_property: Any
) -> None:
    ada = await people(site.url)
    share = await _busy_share(ada, site, api, deltas=600, words_before=20)
    record_property("busy share of the main thread at 200 deltas a second", round(share, 2))
    assert share < 0.5


async def test_the_ten_thousandth_word_costs_little_more_than_the_tenth(
    people: SitDown, site: Server, api: Client, record_property: Any
) -> None:
    ada = await people(site.url)
    share = await _busy_share(ada, site, api, deltas=300, words_before=10_000)
    record_property("the same, behind ten thousand words", round(share, 2))
    assert share < 0.6

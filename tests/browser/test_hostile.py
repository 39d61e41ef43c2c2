"""A malicious or defective model: the page remains safe and usable."""

import asyncio
import re

import pytest
from playwright.async_api import expect

from tests.browser.conftest import SitDown
from tests.browser.person import Person
from tests.browser.test_talk import use
from tests.support.http_client import Client
from tests.support.http_server import Server
from turnstream.llm.provider import Part
from turnstream.scripted import message_of, text, tool_use

pytestmark = pytest.mark.asyncio(loop_scope="session")

HARM = [
    "<script>window.harmed = 1</script>",
    '<img src=x onerror="window.harmed = 2">',
    '<svg onload="window.harmed = 3"><a xlink:href="javascript:window.harmed = 4">x</a></svg>',
    "[click](javascript:window.harmed=5)",
    "[click](JaVa\tScRiPt:window.harmed=6)",
    "[click](data:text/html;base64,PHNjcmlwdD53aW5kb3cuaGFybWVkPTc8L3NjcmlwdD4=)",
    '[click](https://example.org/"onmouseover="window.harmed=8)',
    "![picture](https://tracker.example/pixel.gif)",
    '<iframe srcdoc="<script>parent.harmed = 9</script>"></iframe>',
    '<form action="/api/chats" method="post"><button id="send">Send</button></form>',
    '<style>body { display: none }</style><div style="position:fixed;inset:0">over all</div>',
    '<a href="#" id="words" name="DOMPurify">clobber</a>',
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=window.harmed=10&gt;'>",
    "```html\n<script>window.harmed = 11</script>\n```",
    "`<b onclick=window.harmed=12>`",
    "| <script>window.harmed=13</script> | [x](vbscript:y) |\n|---|---|\n| a | <td onclick=window.harmed=14> |",
    "[a]: javascript:window.harmed=15\n\n[a]",
    "<https://example.org> <javascript:window.harmed=16>",
]
BROKEN = [
    "**never closed _and `this [neither](",
    "> " * 300 + "deep",
    "1. " * 300 + "deep",
    "|" * 2000,
    "```",
    "[" * 3000,
    "a_b_" * 2500,
    "\u202eevil\u202c \u2066\u2067 abc \u202e",
    "|a" * 2000 + "|\n" + "|-" * 2000 + "|\n" + "|b\n" * 400,
    "$$a\n" * 15_000,
    "\ud7ff\ufeff\u200b\u0301" * 50,
]

_ALIVE = "() => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)))"


async def _hears(ada: Person, site: Server, api: Client, *blocks: list[Part]) -> None:
    await ada.open(await use(api, site.scripts.model(message_of(*blocks), message_of(text("Done.")))))
    await ada.say("Harm me")
    await ada.sees_end()


async def test_no_output_of_a_model_runs_code_or_makes_an_unsafe_link(
    people: SitDown, site: Server, api: Client
) -> None:
    ada = await people(site.url)
    whole = "\n\n".join(HARM)
    pieces = re.findall(r"(?s).{1,7}", whole)
    await _hears(ada, site, api, text(*pieces), tool_use("weather", {"port": HARM[0] + HARM[1]}, "call-1"))
    page = ada.page
    for details in await page.locator("#turns details").all():
        await details.evaluate("(details) => (details.open = true)")
    for link in await page.locator("#turns a").all():
        await link.hover()
    await page.evaluate(_ALIVE)
    assert await page.evaluate("window.harmed") is None
    links = await page.locator("#turns a").evaluate_all("(links) => links.map((link) => link.href)")
    assert all(link.startswith("https://") for link in links)
    assert (
        await page.locator("#turns :is(script, iframe, img, style, form, svg:not(.icon), object, embed)").count() == 0
    )
    assert await page.locator("#words").count() == 1
    attributes = await page.locator("#turns *").evaluate_all(
        "(all) => [...new Set(all.flatMap((one) => one.getAttributeNames()))].filter((name) => name.startsWith('on'))"
    )
    assert attributes == []
    assert "<script>window.harmed = 1</script>" in await page.locator("#turns").inner_text()


async def test_broken_markdown_is_shown_as_it_comes(people: SitDown, site: Server, api: Client) -> None:
    ada = await people(site.url)
    replies = [message_of(text(words[:5], words[5:])) for words in BROKEN]
    await ada.open(await use(api, site.scripts.model(*replies)))
    for place, _ in enumerate(BROKEN, start=1):
        await ada.say("Break")
        await expect(ada.page.locator(".turn.assistant")).to_have_count(place)
        await ada.sees_end()
    await ada.page.evaluate(_ALIVE)


async def test_characters_that_turn_the_direction_do_not_affect_the_text_around(
    people: SitDown, site: Server, api: Client
) -> None:
    ada = await people(site.url)
    sent = {"port": "\u202egnp.exe"}
    await ada.open(
        await use(api, site.scripts.model(message_of(tool_use("book_berth", sent, "call-1"))), "\u202eTitle")
    )
    await ada.say("Book")
    await ada.page.locator(".ask .mask").wait_for()
    assert await ada.page.locator(".ask .mask").get_attribute("data-code") == "U+202E"
    isolated = await ada.page.locator("#title, #chats a").evaluate_all(
        "(all) => all.map((one) => getComputedStyle(one).unicodeBidi)"
    )
    assert set(isolated) == {"isolate"}


async def test_a_huge_table_is_shown_in_parts(people: SitDown, site: Server, api: Client) -> None:
    ada = await people(site.url)
    table = "|a|b|c|\n|-|-|-|\n" + "|cell|cell|cell|\n" * 40_000
    await _hears(ada, site, api, text(*(table[at : at + 20_000] for at in range(0, len(table), 20_000))))
    await ada.page.get_by_role("button", name="Show more").wait_for()
    await ada.page.evaluate(_ALIVE)


async def test_ten_megabytes_of_one_word_leave_the_page_alive(people: SitDown, site: Server, api: Client) -> None:
    ada = await people(site.url)
    piece = "a" * 100_000
    await _hears(ada, site, api, text(*[piece] * 100))
    await ada.page.get_by_role("button", name="Show more (9,700,000 characters are hidden)").wait_for()
    async with asyncio.timeout(60):
        await ada.page.evaluate(_ALIVE)
    shown = await ada.page.locator(".turn.assistant .prose .plain").evaluate("(one) => one.textContent.length")
    assert shown == 300_000
    await ada.page.fill("#words", "still here")
    assert await ada.page.input_value("#words") == "still here"

"""A person who uses the page: what the person does and sees, and the comparison of the page with the database."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Error, Locator, Page

from tests.support.http_client import Client
from turnstream.domain.turns import ENDED

PATIENCE = 60_000  # milliseconds; tolerates a machine that is busy with other tests

# If a turn makes no progress for ten seconds, which happens on a busy machine, the page requests the reason. If the
# turn has been deleted meanwhile, the page shows nothing, but the browser logs the 404.
_ASKED_TOO_LATE = r"404 \(Not Found\) \(\S+/why\)$"

# Reads the full content of the page's turns, folded or not. When a block is unfolded, the page draws it only at the
# `toggle` event, which comes late.
_READ = """() => {
  for (const folded of document.querySelectorAll('#turns details:not([hidden])')) folded.open = true
  const read = () => [...document.querySelectorAll('#turns [data-turn]')].map((turn) => ({
    id: turn.dataset.turn,
    status: turn.dataset.status,
    blocks: [...turn.querySelectorAll('[data-block]')].map((block) => ({
      index: Number(block.dataset.block),
      text: (block.querySelector('.input, .plain') ?? block).textContent,
      prose: block.matches('.prose') ? block.textContent : null,
      result: block.querySelector('.result .plain')?.textContent ?? null,
    })),
  }))
  return new Promise((resolve) => {
    let frames = 0
    const look = () => {
      const undrawn = document.querySelector('#turns details[open]:not([hidden]) > .input:empty')
      if (frames++ < 2 || (undrawn && frames < 600)) requestAnimationFrame(look)
      else resolve(read())
    }
    look()
  })
}"""


@dataclass
class Person:
    page: Page
    context: BrowserContext
    expected: list[str] = field(default_factory=list)
    _troubles: list[str] = field(default_factory=list)

    # --- actions ---

    async def open(self, chat: str = "") -> None:
        address = self.page.url.partition("#")[0]
        await self.page.goto("about:blank")
        await self.page.goto(f"{address}#{chat}" if chat else address)
        await self.ready()

    async def reload(self) -> None:
        await self.page.reload()
        await self.ready()

    async def ready(self) -> None:
        await self.page.wait_for_selector("html[data-ready]", state="attached")

    async def say(self, words: str) -> None:
        await self.page.fill("#words", words)
        await self.page.keyboard.press("Enter")

    async def press(self, name: str, within: Locator | None = None) -> None:
        await (within or self.page).get_by_role("button", name=name, exact=True).last.click()

    # --- observations ---

    @property
    def chat(self) -> str:
        return self.page.url.partition("#")[2].partition("/")[0]

    @property
    def last(self) -> Locator:
        return self.page.locator("#turns .turn").last

    async def sees(self, text: str) -> None:
        await self.page.locator("#turns").get_by_text(text).last.wait_for()

    async def sees_end(self, status: str = "complete") -> None:
        """Waits until the last turn of the page has ended."""
        await self.page.wait_for_selector(
            f"#turns > :last-child > .turn.assistant[data-status={status}]:last-child .figures:not(:empty)"
        )

    async def sees_what_is_stored(self, api: Client) -> list[dict[str, Any]]:
        """Checks that the page shows the newest path of the open chat, by turn and block. Returns this path."""
        stored = (await api.json("GET", f"/api/chats/{self.chat}/turns"))["turns"]
        shown = await self.page.evaluate(_READ)
        assert [_ended(turn) for turn in shown] == [_ended(turn) for turn in stored]
        for seen, turn in zip(shown, stored, strict=True):
            assert _seen(seen) == _written(turn)
        return stored  # type: ignore[no-any-return]

    def expects(self, *trouble: str) -> None:
        """Declares errors that the test causes on purpose, so that they do not fail it."""
        self.expected.extend(trouble)

    def troubles(self) -> list[str]:
        expected = [*self.expected, _ASKED_TOO_LATE]
        return [one for one in self._troubles if not any(re.search(each, one) for each in expected)]

    def hear(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and "Service Worker registration blocked" not in message.text:
            self._troubles.append(f"{message.text} ({message.location.get('url')})")

    def fail(self, error: Error) -> None:
        self._troubles.append(f"{error.name}: {error.message}\n{error.stack}")


def _ended(turn: dict[str, Any]) -> tuple[str, str | None]:
    """Returns the id and the final status. The status of a running turn is left out, because it may change between the
    two reads.
    """
    return turn["id"], turn["status"] if turn["status"] in ENDED else None


def _seen(turn: dict[str, Any]) -> dict[str, str]:
    """Returns the text by block, without white space and Markdown characters."""
    texts = {f"{block['index']}": _bare(block["prose"] or block["text"]) for block in turn["blocks"]}
    results = {f"result of {block['index']}": _bare(block["result"]) for block in turn["blocks"] if block["result"]}
    return texts | results


def _written(turn: dict[str, Any]) -> dict[str, str]:
    """Returns the stored text by block. The page joins an interrupted text and its continuation, and so does this
    function.
    """
    calls = {(block["round"], block.get("id")): block["index"] for block in turn["blocks"]}
    found: dict[str, str] = {}
    cut_off = None
    for block in turn["blocks"]:
        if block["type"] == "tool_result":
            found[f"result of {calls[block['round'], block['tool_use_id']]}"] = _bare(block["text"])
        elif block["type"] == "text" and cut_off is not None:
            found[cut_off] += _bare(block["text"])
        else:
            found[f"{block['index']}"] = _bare(block["text"] or "{}")
        cut_off = f"{block['index']}" if block["type"] == "text" and block.get("interrupted") else None
    return found


def _bare(text: str) -> str:
    return re.sub(r"[\s*>`#]", "", text)


@asynccontextmanager
async def sit_down(browser: Browser, url: str, **options: Any) -> AsyncIterator[Person]:
    # The default has no service worker, because a service worker requests all files of the page.
    defaults = {"viewport": {"width": 1180, "height": 780}, "service_workers": "block"}
    context = await browser.new_context(**{**defaults, **options})
    context.set_default_timeout(PATIENCE)
    try:
        yield await new_tab(context, url)
    finally:
        await context.close()


async def new_tab(context: BrowserContext, url: str) -> Person:
    """Opens a page at `url` with its own list of errors. The list includes violations of the content security policy,
    which the browser logs.
    """
    page = await context.new_page()
    person = Person(page, context)
    page.on("console", person.hear)
    page.on("pageerror", person.fail)
    await page.goto(url)
    if "/static/" not in url:
        await person.ready()
    return person

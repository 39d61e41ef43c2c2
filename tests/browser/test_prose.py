"""How the page shows formulas, tables and code in answers, and documents."""

from typing import Any

import pytest
from playwright.async_api import Request, expect

from tests.browser.conftest import SitDown
from tests.browser.scenes import paused
from tests.browser.test_budgets import violations
from tests.browser.test_talk import use
from tests.support.http_client import Client
from tests.support.http_server import Server
from turnstream.scripted import Pause, message_of, text

pytestmark = pytest.mark.asyncio(loop_scope="session")

FORMULAS = r"""It costs $5, not $6. But \(e^{i\pi} + 1 = 0\) and $\textbf{x}_1$ hold, in \[x^2\] too:

\[
\int_0^\infty e^{-x^2} \mathrm{d}x = \frac{\sqrt{\pi}}{2}
\]

$$\begin{pmatrix} a & \color{red} b \\ c & \prescript{a}{b}{d} \end{pmatrix}$$

`$code$` stays, and so does \$z\$. \(\href{javascript:alert(1)}{leads nowhere}\) and \(\includegraphics{a.png}\)."""


async def test_formulas_are_drawn_by_a_library_that_is_loaded_with_the_first_of_them(
    people: SitDown, site: Server, api: Client
) -> None:
    chat = await use(api, site.scripts.model(message_of(text("None here, for $5.")), message_of(text(*FORMULAS))))
    ada = await people(site.url, chat)
    loaded: list[str] = []

    def note(request: Request) -> None:
        if "temml" in request.url:
            loaded.append(request.url)

    ada.page.on("request", note)
    await ada.say("A price?")
    await ada.sees_end()
    assert loaded == []
    await ada.say("A formula?")
    await ada.sees_end()
    formulas = ada.last.locator("math")
    await expect(formulas).to_have_count(6)  # the image is rejected
    await expect(ada.last.locator("math[display=block] mfrac")).to_have_count(1)
    await expect(ada.last.locator("mtable mtr")).to_have_count(2)
    await expect(ada.last.locator("math a, math img, math [href], math [src]")).to_have_count(0)
    await ada.sees("It costs $5, not $6.")
    await ada.sees("$code$")
    assert len(loaded) == 1
    assert await violations(ada) == []


NOTES = """The tide[^moon] rises[^1]. A class `[^a]` and [^none] stay as they are.

| a | b[^1] |
|---|---|
| 1 | 2 |

[^1]: By **twelve** metres at [Saint-Malo](https://example.org).
[^moon]: The moon draws the water."""


async def test_a_mark_of_a_footnote_leads_to_its_note(people: SitDown, site: Server, api: Client) -> None:
    pause = Pause()
    words, notes = NOTES.split("\n\n[", 1)
    answer = paused(pause, words, f"\n\n[{notes}", after=1)
    ada = await people(site.url, await use(api, site.scripts.model(answer)))
    await ada.say("Why?")
    await ada.sees("rises[^1]")  # the footnote has not arrived yet
    pause.go.set()
    await ada.sees_end()
    await ada.sees("The tide1 rises2. A class [^a] and [^none] stay as they are.")
    await expect(ada.last.locator(".note")).to_have_text(
        ["2. By twelve metres at Saint-Malo.", "1. The moon draws the water."]
    )
    await ada.press("Footnote 1")
    await expect(ada.last.locator(".note").last).to_be_focused()
    assert await violations(ada) == []


async def test_a_diagram_is_its_source_with_a_word_why(people: SitDown, site: Server, api: Client) -> None:
    ada = await people(site.url, await use(api, site.scripts.model(message_of(text("```mermaid\nA --> B\n```")))))
    await ada.say("Draw")
    await ada.sees_end()
    await ada.sees("the source of a diagram, which this page does not draw")
    await ada.sees("A --> B")


_TABLE = """() => [...document.querySelectorAll('#turns td')].map((cell) => {
  const range = new Range()
  range.selectNodeContents(cell)
  const lines = new Set([...range.getClientRects()].map((rect) => Math.round(rect.top)))
  return { align: getComputedStyle(cell).textAlign, lines: lines.size }
})"""


@pytest.mark.full
async def test_tables_keep_whole_words_and_their_alignment_on_a_phone(
    people: SitDown, site: Server, api: Client
) -> None:
    words = ["Constantinople", "Oberammergau", "Nebuchadnezzar", "Counterclockwise"]
    rows = ["| " + " | ".join(words) + " |", "|:--|:-:|--:|---|", "| " + " | ".join(words) + " |"]
    chat = await use(api, site.scripts.model(message_of(text("\n".join(rows)))))
    ada = await people(site.url, chat, viewport={"width": 360, "height": 700})
    await ada.say("A table?")
    await ada.sees_end()
    cells: list[dict[str, Any]] = await ada.page.evaluate(_TABLE)
    assert [cell["lines"] for cell in cells] == [1, 1, 1, 1]
    assert [cell["align"].removeprefix("-webkit-") for cell in cells] == ["left", "center", "right", "start"]


@pytest.mark.full
async def test_the_head_of_long_code_stays_in_sight_and_its_lines_can_be_wrapped(
    people: SitDown, site: Server, api: Client
) -> None:
    code = "```js\n" + "let tide = 'high and low and high'\n" * 200 + "x".join(["let wide"] * 60) + "\n```"
    ada = await people(site.url, await use(api, site.scripts.model(message_of(text(code)))))
    await ada.say("Code?")
    await ada.sees_end()
    copying = ada.page.get_by_role("button", name="Copy code")
    await expect(copying).to_be_in_viewport()
    await ada.page.evaluate("document.querySelector('#transcript').scrollTop /= 2")
    await expect(copying).to_be_in_viewport()
    frame = ada.page.get_by_role("group", name="Code js")
    assert await frame.evaluate("(frame) => frame.scrollWidth > frame.clientWidth")
    await ada.press("Wrap long lines")
    assert await frame.evaluate("(frame) => frame.scrollWidth === frame.clientWidth")


@pytest.mark.full
async def test_a_document_is_opened(people: SitDown, site: Server, api: Client) -> None:
    await api.put("/api/documents/tides.md", content="Why there are <b>tides</b>.")
    ada = await people(site.url)
    await ada.press("Documents")
    await ada.page.get_by_role("button", name="tides.md").first.click()
    await ada.page.get_by_role("dialog", name="tides.md").get_by_text("Why there are <b>tides</b>.").wait_for()
    assert await violations(ada) == []

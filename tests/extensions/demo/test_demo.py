from collections.abc import Sequence
from threading import get_ident

import pytest

from tests.support.model_requests import call, result, text
from turnstream.domain.blocks import Block
from turnstream.domain.turns import ToolSpec
from turnstream.extensions.demo import provider
from turnstream.extensions.demo.provider import DemoProvider
from turnstream.extensions.demo.script import Answer, answer_of
from turnstream.llm.accumulator import Accumulator
from turnstream.llm.conversation.messages import GIVEN_UP, GO_ON, NO_ROUND_LEFT, ONE_ROUND_LEFT, REPORTED, ROUNDS_LEFT
from turnstream.llm.provider import Message, ModelRequest

ALL = ("doc_search", "doc_tree", "doc_view")
HITS = "guides/setup.md\n  Plug it in, then press the button.\n\nguides/care.md\n  Dust it."
EXCERPT = "guides/setup.md, lines 1-4 of 4:\n     1\t# Setup\n     2\tHello.\n     3\t\n     4\tPress the button."


def asking(question: str, *since: Message, tools: Sequence[str] = ALL, may_use_tools: bool = True) -> ModelRequest:
    specs = tuple(ToolSpec(name, "…", "{}") for name in tools)
    return ModelRequest("demo", (Message("user", (text(question),)), *since), tools=specs, may_use_tools=may_use_tools)


def used(name: str, input: str, said: str, *, failed: bool = False) -> tuple[Message, Message]:
    """Returns a tool call and its result, as the two messages of a round."""
    asked = call(name, input)
    answer = result(name, said, is_error=failed)
    return Message("assistant", (Block(0, 1, 1, "tool_use", input, asked.data, name, name),)), Message(
        "user", (answer,)
    )


async def reply(request: ModelRequest, delay: float = 0) -> list[Block]:
    accumulator = Accumulator(1, 1, 0)
    stream = DemoProvider(delay).stream(request)
    changes = [change async for parts in stream for change in accumulator.feed(parts)]
    return [change for change in changes if isinstance(change, Block)]


def calls(blocks: Sequence[Block]) -> list[tuple[str | None, str]]:
    return [(block.name, block.text) for block in blocks if block.is_call]


def words(blocks: Sequence[Block]) -> str:
    return "".join(block.text for block in blocks if block.type == "text")


@pytest.mark.parametrize("tools", [ALL, ()])
async def test_its_first_words_say_that_it_is_a_scripted_demo(tools: Sequence[str]) -> None:
    assert words(await reply(asking("How do I press the button?", tools=tools))).startswith("This is a scripted demo")


async def test_the_demo_searches_for_the_keywords_of_the_question() -> None:
    blocks = await reply(asking("What does the button do when I press it?"))
    assert [block.type for block in blocks] == ["thinking", "text", "tool_use"]
    assert calls(blocks) == [("doc_search", '{"query":"button press","limit":3}')]


async def test_the_demo_lists_the_library_on_request_and_may_search_at_the_same_time() -> None:
    assert calls(await reply(asking("list my documents"))) == [("doc_tree", "{}")]
    assert [name for name, _ in calls(await reply(asking("list the documents about buttons")))] == [
        "doc_search",
        "doc_tree",
    ]


@pytest.mark.parametrize(
    ("tools", "called"),
    [(("doc_tree",), ["doc_tree"]), (("doc_search",), ["doc_search"]), (("doc_view",), []), ((), [])],
)
async def test_the_demo_calls_only_the_tools_of_the_request(tools: Sequence[str], called: list[str]) -> None:
    assert [name for name, _ in calls(await reply(asking("press the button", tools=tools)))] == called


async def test_the_demo_calls_no_tool_without_permission() -> None:
    request = asking("press the button", *used("doc_search", '{"query":"button"}', HITS), may_use_tools=False)
    assert calls(await reply(asking("press the button", may_use_tools=False))) == []
    blocks = await reply(request)
    assert calls(blocks) == []
    assert "guides/setup.md" in words(blocks)


async def test_the_demo_reads_the_best_hit_and_answers_with_the_matching_lines() -> None:
    search = used("doc_search", '{"query":"button"}', HITS)
    blocks = await reply(asking("press the button", *search))
    assert calls(blocks) == [("doc_view", '{"path":"guides/setup.md"}')]
    view = used("doc_view", '{"path":"guides/setup.md"}', EXCERPT)
    answer = await reply(asking("press the button", *search, *view))
    assert calls(answer) == []
    assert "**guides/setup.md**:\n\n> Hello.\n>\n> Press the button." in words(answer)


async def test_a_view_without_line_numbers_or_lines_is_shown_as_it_is() -> None:
    for said in ["guides/setup.md is empty.", ""]:
        view = used("doc_view", '{"path":"guides/setup.md"}', said)
        assert said in words(await reply(asking("press the button", *view)))


async def test_the_demo_shows_the_library_after_only_listing_it() -> None:
    tree = used("doc_tree", "{}", "1 document, 5 characters:\nsetup.md  5")
    assert "```\n1 document, 5 characters:\nsetup.md  5\n```" in words(await reply(asking("hi", *tree)))


async def test_a_question_for_the_files_lists_them_beside_any_other_result() -> None:
    question = "What files are in my project?"
    first = await reply(asking(question))
    assert [name for name, _ in calls(first)] == ["doc_search", "doc_tree"]
    found = (
        *used("doc_search", '{"query":"project"}', HITS),
        *used("doc_tree", "{}", "2 documents:\nguides/setup.md  5"),
    )
    view = used("doc_view", '{"path":"guides/setup.md"}', EXCERPT)
    for since, tools in ((found, ("doc_search", "doc_tree")), ((*found, *view), ALL)):
        said = words(await reply(asking(question, *since, tools=tools)))
        assert said.startswith("This is what the library holds:\n\n```\n2 documents:\nguides/setup.md  5\n```")
        assert "**guides/setup.md**" in said


async def test_the_demo_quotes_the_result_of_a_search_without_hits() -> None:
    search = used("doc_search", '{"query":"x"}', "No document matches 'x'.")
    assert words(await reply(asking("x marks the spot", *search))) == "No document matches 'x'."


async def test_the_demo_names_a_failed_tool_and_its_error() -> None:
    search = used("doc_search", '{"query":"x"}', "The library is closed.", failed=True)
    assert words(await reply(asking("x marks the spot", *search))) == (
        "doc_search failed, and this is what it said:\n\n> The library is closed."
    )


async def test_the_demo_reports_results_of_unknown_tools_as_unreadable() -> None:
    assert "none that I know" in words(await reply(asking("hi", *used("weather", "{}", "Sun."))))


async def test_a_prompt_to_continue_is_not_a_new_question() -> None:
    cut = Message("assistant", (text("I look"),)), Message("user", (text(GO_ON),))
    assert calls(await reply(asking("press the button", *cut))) == [
        ("doc_search", '{"query":"press button","limit":3}')
    ]


@pytest.mark.parametrize("added", [GIVEN_UP, ROUNDS_LEFT.format(3), ONE_ROUND_LEFT, NO_ROUND_LEFT])
async def test_a_text_that_is_added_to_the_users_is_not_a_new_question(added: str) -> None:
    behind = Message("user", (text(added),))
    assert calls(await reply(asking("press the button", behind))) == [
        ("doc_search", '{"query":"press button","limit":3}')
    ]


async def test_without_any_question_it_still_answers() -> None:
    assert words(await reply(ModelRequest("demo", ()))).startswith("This is a scripted demo")


async def test_a_long_question_is_repeated_in_short() -> None:
    thought = (await reply(asking("button " * 50)))[0].text
    assert "…" in thought
    assert len(thought) < 250


async def test_the_demo_streams_word_by_word_at_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("turnstream.extensions.demo.provider.asyncio.sleep", sleep)
    blocks = await reply(asking("hi", tools=()), delay=0.015)
    assert len(pauses) == sum(len(block.text.split()) for block in blocks)
    assert set(pauses) == {0.015}


async def test_only_the_beginning_of_a_long_question_is_searched_for_words() -> None:
    blocks = await reply(asking("button " + "the " * 1_000_000 + "press"))
    assert calls(blocks) == [("doc_search", '{"query":"button","limit":3}')]


async def test_only_the_beginning_of_a_long_result_is_read() -> None:
    found = used("doc_search", '{"query":"button"}', "x\n" * 1_000_000 + HITS)
    assert calls(await reply(asking("button", *found))) == []


@pytest.mark.parametrize(("question", "away"), [("/say " + "word " * 100_000, True), ("/say word", False)])
async def test_a_long_question_is_answered_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, question: str, away: bool
) -> None:
    threads: list[int] = []

    def noted(request: ModelRequest) -> Answer:
        threads.append(get_ident())
        return answer_of(request)

    monkeypatch.setattr(provider, "answer_of", noted)
    assert words(await reply(asking(question))) == question.removeprefix("/say ").strip()
    assert (get_ident() not in threads) == away


async def test_the_demo_quotes_the_report_of_a_background_call() -> None:
    head = REPORTED.format(tool_use_id="a", name="dig", how="")
    report = Message("user", (text(f"{head}\n\na hole\n\nin Rome"),))
    blocks = await reply(asking("/call dig {}", *used("dig", "{}", "It was started."), report))
    assert words(blocks) == "A call in the background returned:\n\n> a hole\n>\n> in Rome"

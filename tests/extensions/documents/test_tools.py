import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from turnstream.extensions.documents.tools import document_tools, sample_documents
from turnstream.kit.text import unstorable
from turnstream.tools.tool import Outcome, ToolContext
from turnstream.tools.toolset import Toolset

NOW = datetime(2026, 11, 2, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Info:
    path: str
    size: int
    updated_at: datetime = NOW


@dataclass(frozen=True, slots=True)
class Hit:
    path: str
    rank: float
    snippet: str


class Shelf:
    """A library in memory: {owner: {path: content}}. A search finds documents in which a line contains the query."""

    def __init__(self, documents: Mapping[str, Mapping[str, str]]) -> None:
        self._documents = documents

    async def tree(self, owner: str, prefix: str) -> list[Info]:
        mine = self._documents.get(owner, {})
        return [Info(path, len(text)) for path, text in mine.items() if path.startswith(prefix)]

    async def read(self, owner: str, path: str) -> str | None:
        return self._documents.get(owner, {}).get(path)

    async def search(self, owner: str, query: str, limit: int) -> list[Hit]:
        assert unstorable(query) is None
        lines = [
            Hit(path, 1 / number, f"…\n{line} …")
            for path, text in self._documents.get(owner, {}).items()
            for number, line in enumerate(text.splitlines(), start=1)
            if query in line
        ]
        return sorted(lines, key=lambda hit: -hit.rank)[:limit]


def tools_on(documents: Mapping[str, str]) -> Toolset:
    return Toolset(document_tools(Shelf({"ada": documents})))


EMPTY = tools_on({})
SMALL = tools_on(
    {
        "readme.md": "hello\n",
        "guide/setup.md": "# Setup\n\nfirst\nsecond\n",
        "guide/deep/Notes.md": "a" * 1234,
        "guides.md": "",
    }
)


def test_the_document_tools_only_read() -> None:
    assert EMPTY.names == ("doc_tree", "doc_view", "doc_search")
    assert all(spec.read_only for spec in EMPTY.specs())


async def test_the_tree_shows_folders_and_sizes(context: ToolContext) -> None:
    outcome = await SMALL.run("doc_tree", "{}", context)
    assert outcome == Outcome(
        "4 documents, 1,262 characters:\n"
        "guide/\n"
        "  deep/\n"
        "    Notes.md  1,234\n"
        "  setup.md  22\n"
        "guides.md  0\n"
        "readme.md  6"
    )


@pytest.mark.parametrize("folder", ["guide/deep", "/guide/deep/", " ./guide/deep "])
async def test_the_tree_of_one_folder(context: ToolContext, folder: str) -> None:
    outcome = await SMALL.run("doc_tree", f'{{"folder": "{folder}"}}', context)
    assert outcome.text == ("1 document, 1,234 characters, in guide/deep/:\nguide/\n  deep/\n    Notes.md  1,234")


async def test_a_large_library_is_shown_one_level_at_a_time(context: ToolContext) -> None:
    documents = {f"shelf-{number % 3}/{number}.md": "x" for number in range(900)} | {"index.md": "abc"}
    tools = tools_on(documents)
    assert (await tools.run("doc_tree", "{}", context)).text == (
        "901 documents, 903 characters; name a folder to see inside:\n"
        "shelf-0/  300 documents\n"
        "shelf-1/  300 documents\n"
        "shelf-2/  300 documents\n"
        "index.md  3"
    )
    assert (await tools.run("doc_tree", '{"folder": "shelf-1"}', context)).text.count("\n") == 301


async def test_a_large_folder_is_cut(context: ToolContext) -> None:
    tools = tools_on({f"flat/{number:04}.md": "x" for number in range(1000)})
    lines = (await tools.run("doc_tree", '{"folder": "flat"}', context)).text.splitlines()
    assert lines[0] == "1,000 documents, 1,000 characters, in flat/; name a folder to see inside:"
    assert lines[1] == "flat/0000.md  1"
    assert lines[-1] == "… and 600 more; doc_search finds them"
    assert len(lines) == 402


@pytest.mark.parametrize(
    ("name", "sent", "is_error"),
    [("doc_tree", "{}", False), ("doc_search", '{"query": "x"}', False), ("doc_view", '{"path": "x"}', True)],
)
async def test_an_empty_library_explains_how_to_add_documents(
    context: ToolContext, name: str, sent: str, is_error: bool
) -> None:
    outcome = await EMPTY.run(name, sent, context)
    assert outcome.is_error == is_error
    assert outcome.text == ("The library is empty. The user can add documents with PUT /api/documents/{path}.")


async def test_an_owner_sees_no_other_owners_documents(context: ToolContext) -> None:
    tools = Toolset(document_tools(Shelf({"bob": {"secret.md": "x"}}), adding="Ask for some."))
    assert (await tools.run("doc_tree", "{}", context)).text == "The library is empty. Ask for some."
    assert (await tools.run("doc_view", '{"path": "secret.md"}', context)).is_error


async def test_a_document_is_shown_with_line_numbers(context: ToolContext) -> None:
    outcome = await SMALL.run("doc_view", '{"path": "guide/setup.md"}', context)
    assert outcome.text == ("guide/setup.md, lines 1-4 of 4:\n     1\t# Setup\n     2\t\n     3\tfirst\n     4\tsecond")


async def test_a_part_of_a_document_names_the_next_offset(context: ToolContext) -> None:
    outcome = await SMALL.run("doc_view", '{"path": "guide/setup.md", "offset": 2, "limit": 2}', context)
    assert outcome.text == (
        "guide/setup.md, lines 2-3 of 4:\n     2\t\n     3\tfirst\n[1 more line: call doc_view with offset 4]"
    )


async def test_following_the_hints_shows_every_character_once(context: ToolContext) -> None:
    content = "\n".join("x" * length for length in [3, 0, 1999, 2000, 2001, 130_000, 7, *([40] * 3000)])
    tools = tools_on({"long.md": content})
    seen, offset = "", 1
    while offset:
        text = (await tools.run("doc_view", f'{{"path": "long.md", "offset": {offset}}}', context)).text
        assert len(text) < 100_000
        seen += "".join(re.findall(r"^ *\d+\t(.*)$", text, re.MULTILINE))
        going_on = re.search(r"with offset (\d+)\]$", text)
        offset = int(going_on[1]) if going_on else 0
    assert seen == content.replace("\n", "")


async def test_there_may_be_nothing_to_show(context: ToolContext) -> None:
    assert (await SMALL.run("doc_view", '{"path": "guides.md"}', context)).text == "guides.md is empty."
    behind = await SMALL.run("doc_view", '{"path": "readme.md", "offset": 9}', context)
    assert behind.text == "readme.md has only 1 line; there is no line 9."


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("setup.md", "Near to it: guide/setup.md."),
        ("guide/notes.md", "Near to it: guide/deep/Notes.md."),
        ("guide/setpu.md", "Near to it: guide/setup.md, guides.md, guide/deep/Notes.md."),
        ("docs/stup.md", "Near to it: guide/setup.md."),
        ("zzzzzz", "There is no 'zzzzzz' in the library; doc_tree lists what there is."),
        ("guide", "'guide' is a folder; doc_tree lists what is in it."),
        ("read\\u0000me.md", "Near to it: readme.md."),
    ],
)
async def test_an_unknown_path_is_answered_with_suggestions(context: ToolContext, path: str, answer: str) -> None:
    outcome = await SMALL.run("doc_view", f'{{"path": "{path}"}}', context)
    assert outcome.kind == "error"
    assert outcome.text.endswith(answer)


async def test_an_unknown_folder_is_answered_with_suggestions(context: ToolContext) -> None:
    outcome = await SMALL.run("doc_tree", '{"folder": "guid"}', context)
    assert outcome.kind == "error"
    assert outcome.text.startswith("There is no 'guid' in the library. Near to it: guide/setup.md")
    outcome = await SMALL.run("doc_tree", '{"folder": "readme.md"}', context)
    assert outcome.text == "'readme.md' is a document; doc_view shows it."


async def test_search_gives_the_best_first_with_snippets(context: ToolContext) -> None:
    tools = tools_on({"late.md": "x\nx\ntide", "early.md": "tide", "no.md": "nothing"})
    outcome = await tools.run("doc_search", '{"query": "tide"}', context)
    assert outcome.text == "early.md\n  … tide …\n\nlate.md\n  … tide …"
    assert (await tools.run("doc_search", '{"query": "tide", "limit": 1}', context)).text.count("md") == 1


async def test_a_search_without_hits_suggests_a_next_step(context: ToolContext) -> None:
    outcome = await SMALL.run("doc_search", '{"query": "a\\u0000b"}', context)
    assert not outcome.is_error
    assert outcome.text.startswith("No document matches 'a\\x00b'. Try fewer or other words")
    assert (await SMALL.run("doc_search", '{"query": ""}', context)).kind == "bad_input"


def test_the_sample_library_is_there_to_be_read() -> None:
    documents = sample_documents()
    assert {path.partition("/")[0] for path in documents} == {"course", "handbook"}
    assert 4 <= len(documents) <= 6
    assert all(text.startswith("# ") and unstorable(text) is None for text in documents.values())

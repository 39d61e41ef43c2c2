"""Tools that list, read and search the documents of an owner."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import takewhile
from typing import Annotated, Protocol

from pydantic import Field

from turnstream.kit.text import storable
from turnstream.tools.tool import Tool, ToolContext, ToolError, tool, tools_of

_MAX_ROWS = 400
_MAX_LINE_CHARS = 2_000
_MAX_EXCERPT_CHARS = 50_000
_MAX_SUGGESTIONS = 5
_MAX_COMPARED = 2_000
_MAX_SEARCHED = 1_000  # maximum hits in the whole library, of which the hits in the requested folder are shown


class Entry(Protocol):
    """A document in a list. `size` is the number of its characters."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...


class SearchHit(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def snippet(self) -> str: ...


class Library(Protocol):
    """The documents of all owners. `tree` lists the documents whose paths begin with a prefix; `search` returns the
    best hits first.
    """

    async def tree(self, owner: str, prefix: str) -> Sequence[Entry]: ...
    async def read(self, owner: str, path: str) -> str | None: ...
    async def search(self, owner: str, query: str, limit: int) -> Sequence[SearchHit]: ...


class DocumentTools:
    """The tools for documents. If the library is empty, `adding` describes to the model how documents are added."""

    def __init__(self, library: Library, adding: str) -> None:
        self._library = library
        self._adding = adding

    @tool(read_only=True)
    async def doc_tree(
        self,
        context: ToolContext,
        folder: Annotated[str, "list only this folder, such as `guides/setup`; empty for all"] = "",
    ) -> str:
        """List the documents of the user's library as a tree of folders, with their sizes in characters.

        Call it first to learn what there is. The other tools take whole paths, folders included.
        """
        inside = _clean(folder)
        documents = await self._documents(context, f"{inside}/" if inside else "")
        if documents:
            return listing(documents, inside)
        if inside:
            raise ToolError(await self._not_found(context, inside))
        return self._empty

    @tool(read_only=True)
    async def doc_view(
        self,
        context: ToolContext,
        path: Annotated[str, "the document's whole path, such as `guides/setup.md`"],
        offset: Annotated[int, Field(ge=1, description="the number of the first line to show")] = 1,
        limit: Annotated[int, Field(ge=1, le=2000, description="how many lines to show at most")] = 500,
    ) -> str:
        """Read a document of the user's library, with line numbers.

        A long document is shown in parts: the result then tells which offset to continue with.
        """
        within = _clean(path).startswith(_reach(context))
        content = await self._library.read(context.owner, _clean(path)) if within else None
        if content is None:
            raise ToolError(await self._not_found(context, _clean(path)))
        return excerpt(_clean(path), content, offset, limit)

    @tool(read_only=True)
    async def doc_search(
        self,
        context: ToolContext,
        query: Annotated[str, Field(min_length=1, description="the words to look for")],
        limit: Annotated[int, Field(ge=1, le=50, description="how many documents to find at most")] = 10,
    ) -> str:
        """Search the user's library for words; the best matches come first, each with a snippet.

        Use a few telling words rather than a sentence, then read what looks right with doc_view.
        """
        reach = _reach(context)
        found = await self._library.search(context.owner, storable(query), _MAX_SEARCHED if reach else limit)
        hits = [hit for hit in found if hit.path.startswith(reach)][:limit]
        if hits:
            return "\n\n".join(f"{hit.path}\n  {' '.join(hit.snippet.split())}" for hit in hits)
        if not await self._documents(context, ""):
            return self._empty
        return f"No document matches {query!r}. Try fewer or other words, or see with doc_tree what there is."

    @property
    def _empty(self) -> str:
        return f"The library is empty. {self._adding}"

    async def _documents(self, context: ToolContext, prefix: str) -> list[Entry]:
        reach = _reach(context)
        return [each for each in await self._library.tree(context.owner, prefix) if each.path.startswith(reach)]

    async def _not_found(self, context: ToolContext, path: str) -> str:
        paths = [document.path for document in await self._documents(context, "")]
        if not paths:
            return self._empty
        if any(known.startswith(f"{path}/") for known in paths):
            return f"{path!r} is a folder; doc_tree lists what is in it."
        if path in paths:
            return f"{path!r} is a document; doc_view shows it."
        if found := suggest_paths(path, paths):
            return f"There is no {path!r} in the library. Near to it: {', '.join(found)}."
        return f"There is no {path!r} in the library; doc_tree lists what there is."


def document_tools(
    library: Library, adding: str = "The user can add documents with PUT /api/documents/{path}."
) -> list[Tool]:
    return tools_of(DocumentTools(library, adding))


def sample_documents() -> dict[str, str]:
    """Returns a small library for trials, as a mapping from paths to contents."""
    return dict(_files(resources.files("turnstream.extensions.documents") / "sample", ""))


def _files(folder: Traversable, prefix: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            found += _files(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".md"):
            found.append((prefix + entry.name, entry.read_text(encoding="utf-8")))
    return found


def _reach(context: ToolContext) -> str:
    """Returns the prefix of all paths that the call may read. Raises ToolError if the call may read no document."""
    if context.documents is None:
        raise ToolError("This conversation cannot reach the user's library: its token does not allow documents.")
    return context.documents


def _clean(path: str) -> str:
    return storable(path).strip().removeprefix("./").strip("/")


# --- texts for the model --------------------------------------------------------------------------------------------


def listing(documents: Sequence[Entry], folder: str = "") -> str:
    """Returns the documents as an indented tree, or only one level of it if there are many documents. All documents
    must be below `folder`.
    """
    size = sum(document.size for document in documents)
    rows = list(_tree(documents) if len(documents) <= _MAX_ROWS else _level(documents, folder))
    head = f"{_count(len(documents), 'document')}, {_count(size, 'character')}{folder and f', in {folder}/'}"
    if len(documents) > _MAX_ROWS:
        head += "; name a folder to see inside"
    if len(rows) > _MAX_ROWS:
        rows[_MAX_ROWS:] = [f"… and {len(rows) - _MAX_ROWS:,} more; doc_search finds them"]
    return "\n".join([f"{head}:", *rows])


def _tree(documents: Sequence[Entry]) -> Iterator[str]:
    shown: list[str] = []
    for document in sorted(documents, key=lambda document: document.path.split("/")):
        *folders, name = document.path.split("/")
        known = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(shown, folders, strict=False)))
        for depth in range(known, len(folders)):
            yield f"{'  ' * depth}{folders[depth]}/"
        yield f"{'  ' * len(folders)}{name}  {document.size:,}"
        shown = folders


def _level(documents: Sequence[Entry], folder: str) -> Iterator[str]:
    """Yields the folders in `folder` with the numbers of their documents, then the documents directly in `folder`."""
    prefix = f"{folder}/" if folder else ""
    inside: dict[str, int] = {}
    beside: list[str] = []
    for document in documents:
        name, slash, _ = document.path.removeprefix(prefix).partition("/")
        if slash:
            inside[name] = inside.get(name, 0) + 1
        else:
            beside.append(f"{prefix}{name}  {document.size:,}")
    yield from (f"{prefix}{name}/  {_count(count, 'document')}" for name, count in sorted(inside.items()))
    yield from sorted(beside)


def excerpt(path: str, content: str, offset: int, limit: int) -> str:
    """Returns up to `limit` numbered lines, starting at line `offset`, and a hint how to read more. Overlong lines are
    folded.
    """
    lines = [
        line[start : start + _MAX_LINE_CHARS]
        for line in content.splitlines()
        for start in range(0, len(line) or 1, _MAX_LINE_CHARS)
    ]
    if not lines:
        return f"{path} is empty."
    if offset > len(lines):
        return f"{path} has only {_count(len(lines), 'line')}; there is no line {offset}."
    end, room = offset - 1, _MAX_EXCERPT_CHARS
    while end < min(offset - 1 + limit, len(lines)) and room > 0:
        room -= len(lines[end])
        end += 1
    numbered = [f"{number:>6}\t{line}" for number, line in enumerate(lines[offset - 1 : end], start=offset)]
    more = f"[{_count(len(lines) - end, 'more line')}: call doc_view with offset {end + 1}]"
    head = f"{path}, lines {offset}-{end} of {len(lines)}:"
    return "\n".join([head, *numbered, *([more] if end < len(lines) else [])])


def suggest_paths(path: str, paths: Sequence[str]) -> list[str]:
    """Suggests paths in place of a path that does not exist: paths that contain it or have its name, otherwise paths
    with a similar spelling.
    """
    path = path.lower()
    name = path.rpartition("/")[2]
    found = [known for known in paths if path in known.lower() or known.lower().rpartition("/")[2] == name]
    spelled = {known.lower(): known for known in paths[:_MAX_COMPARED]}
    spelled |= {known.lower().rpartition("/")[2]: known for known in paths[:_MAX_COMPARED]}
    if not found:
        found = [spelled[key] for part in (path, name) for key in get_close_matches(part, spelled, _MAX_SUGGESTIONS)]
    return list(dict.fromkeys(found))[:_MAX_SUGGESTIONS]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

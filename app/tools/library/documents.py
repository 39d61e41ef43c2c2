"""The document tools: list, read and search the documents of an owner."""

from collections.abc import Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Annotated, Protocol

from pydantic import Field

from app.kit.text import storable
from app.tools.library.listing import Entry, excerpt, listing, suggest_paths
from app.tools.tool import Tool, ToolContext, ToolError, tool, tools_of


class SearchHit(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def snippet(self) -> str: ...


class Library(Protocol):
    """The documents of all owners. `tree` lists paths with a prefix; `search` returns the best hits first."""

    async def tree(self, owner: str, prefix: str) -> Sequence[Entry]: ...
    async def read(self, owner: str, path: str) -> str | None: ...
    async def search(self, owner: str, query: str, limit: int) -> Sequence[SearchHit]: ...


class DocumentTools:
    """`adding` is the text about adding documents that the model reads when the library is empty."""

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
        documents = await self._library.tree(context.owner, f"{inside}/" if inside else "")
        if documents:
            return listing(documents, inside)
        if inside:
            raise ToolError(await self._not_found(context.owner, inside))
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

        A long document is shown in parts: the result then tells which offset to go on with.
        """
        content = await self._library.read(context.owner, _clean(path))
        if content is None:
            raise ToolError(await self._not_found(context.owner, _clean(path)))
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
        hits = await self._library.search(context.owner, storable(query), limit)
        if hits:
            return "\n\n".join(f"{hit.path}\n  {' '.join(hit.snippet.split())}" for hit in hits)
        if not await self._library.tree(context.owner, ""):
            return self._empty
        return f"No document matches {query!r}. Try fewer or other words, or see with doc_tree what there is."

    @property
    def _empty(self) -> str:
        return f"The library is empty. {self._adding}"

    async def _not_found(self, owner: str, path: str) -> str:
        paths = [document.path for document in await self._library.tree(owner, "")]
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
    """A small library for trials: content by path."""
    return dict(_files(resources.files("app.tools.library") / "sample", ""))


def _files(folder: Traversable, prefix: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            found += _files(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".md"):
            found.append((prefix + entry.name, entry.read_text(encoding="utf-8")))
    return found


def _clean(path: str) -> str:
    return storable(path).strip().removeprefix("./").strip("/")

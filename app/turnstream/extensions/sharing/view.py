"""The public view of a turn: the blocks that a link shows. Blocks of unknown types are not shown."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal
from uuid import UUID

from msgspec import DecodeError
from msgspec.json import decode

from turnstream.domain.blocks import Block
from turnstream.domain.kinds import USER_TEXT, kind_of
from turnstream.extensions.sharing.schemas import SharedBlock, SharedTurn
from turnstream.stream.live import LiveView

_Type = Literal["text", "user_text", "call", "result", "file"]


def shared_turn(view: LiveView, *, results: bool, files: bool) -> SharedTurn:
    turn = view.turn
    assert turn.created_at is not None
    blocks = list(_shown(turn.blocks, results=results, files=files))
    if (open_block := view.block_being_written()) is not None:
        shown = _shown([replace(open_block, interrupted=False)], results=results, files=files)
        blocks += [each.model_copy(update={"open": True}) for each in shown]
    return SharedTurn(role=turn.role, status=turn.status, created_at=turn.created_at, blocks=blocks)


def uploads_of(turns: Sequence[SharedTurn]) -> frozenset[UUID]:
    return frozenset(block.upload for turn in turns for block in turn.blocks if block.upload is not None)


def _shown(blocks: Sequence[Block], *, results: bool, files: bool) -> Iterator[SharedBlock]:
    for block in blocks:
        type = _type_of(block)
        if type is None or (type in ("call", "result") and not results) or (type == "file" and not files):
            continue
        if type == "file":
            yield _file(block)
        else:
            yield SharedBlock(type=type, text=block.text, name=block.name, is_error=block.is_error)


def _type_of(block: Block) -> _Type | None:
    """Returns the type that the view shows. Thoughts, notes and blocks of unknown types have no such type."""
    match kind_of(block.type).family:
        case "prose":
            return "text"
        case "steer":
            return "user_text" if block.type == USER_TEXT else None
        case "call" | "server_call":
            return "call"
        case "result" | "server_result":
            return "result"
        case "file":
            return "file"
        case "thought" | "note" | "other":
            return None


def _file(block: Block) -> SharedBlock:
    data = _decoded(block.data)
    source = data.get("source")
    title = data.get("title")
    id = source.get("id") if isinstance(source, dict) and source.get("type") == "upload" else None
    return SharedBlock(
        type="file",
        name=title if isinstance(title, str) else block.type,
        upload=UUID(id) if isinstance(id, str) else None,
    )


def _decoded(data: str | None) -> dict[str, object]:
    try:
        value = decode(data or "{}")
    except DecodeError:
        return {}
    return value if isinstance(value, dict) else {}

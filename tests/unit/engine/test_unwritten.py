"""The last text of a reply is kept until the seal writes it, or is written separately if the round is not sealed."""

import asyncio

import pytest

from turnstream.domain.blocks import Block
from turnstream.engine import unwritten
from turnstream.engine.unwritten import Unwritten

BLOCK = Block(0, 1, 1, "text", "There.")


class Rows:
    """Records the writes. A write waits until `go` is set."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def write(self, block: Block) -> None:
        self.begun.set()
        await self.go.wait()
        self.blocks.append(block)


async def test_a_block_is_kept_for_the_seal() -> None:
    rows = Rows()
    last = Unwritten(rows.write)
    last.keep(BLOCK)
    await last.settle()
    assert (last.blocks, rows.blocks) == ([BLOCK], [])


async def test_a_block_before_the_last_one_is_written_before_later_blocks() -> None:
    rows = Rows()
    rows.go.set()
    last = Unwritten(rows.write)
    last.keep(BLOCK)
    assert last.waits
    await last.write()
    assert (last.blocks, last.waits, rows.blocks) == ([], False, [BLOCK])


async def test_without_a_seal_a_block_is_written_alone_and_later_writes_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unwritten, "LONGEST_WAIT", 0.0)
    rows = Rows()
    last = Unwritten(rows.write)
    last.keep(BLOCK)
    await rows.begun.wait()
    assert last.blocks == [], "it is not left open: a write runs to its end"
    following = asyncio.create_task(last.write())
    await asyncio.sleep(0)
    assert not following.done()
    rows.go.set()
    await following
    assert (last.waits, rows.blocks) == (False, [BLOCK])


async def test_a_late_write_that_fails_fails_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unwritten, "LONGEST_WAIT", 0.0)
    begun = asyncio.Event()

    async def refuse(_block: Block) -> None:
        begun.set()
        raise ValueError("refused")

    last = Unwritten(refuse)
    last.keep(BLOCK)
    await begun.wait()
    with pytest.raises(ValueError, match="refused"):
        await last.settle()


async def test_a_write_that_has_not_begun_is_done_though_the_reply_that_waits_for_it_is_cancelled() -> None:
    """If the event loop was blocked, the write of the block and the time limit of the provider may be due in the same
    iteration.
    """
    rows = Rows()
    rows.go.set()
    last = Unwritten(rows.write)

    async def go_on() -> None:
        last.keep(BLOCK)
        last._write_late()
        await last.write()

    reply = asyncio.ensure_future(go_on())
    await asyncio.sleep(0)
    assert not rows.begun.is_set()
    reply.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reply
    assert rows.blocks == [BLOCK]


async def test_blocks_closed_by_the_last_read_come_behind_a_waiting_text() -> None:
    rows = Rows()
    behind = Block(1, 1, 1, "tool_use", "{}", tool_use_id="a", name="look")
    last = Unwritten(rows.write)
    last.keep(BLOCK)
    last.ahead = ["more", behind]
    assert last.blocks == [BLOCK, behind]
    await last.settle()

import asyncio

from turnstream.kit.ids import new_id
from turnstream.kit.signals import Signals


async def test_a_change_is_acted_on_after_its_sender_has_gone_on() -> None:
    signals, seen = Signals(), list[str]()
    signals.changed.act(lambda owner, _chat: seen.append(owner))
    signals.owner_changed.act(seen.append)
    signals.changed.send("ada", new_id())
    signals.owner_changed.send("bob")
    assert seen == []
    await asyncio.sleep(0)
    assert seen == ["ada", "bob"]


async def test_other_signals_are_acted_on_at_once() -> None:
    signals, seen = Signals(), list[str]()
    signals.notified.act(seen.append)
    signals.notified.send("wake")
    assert seen == ["wake"]

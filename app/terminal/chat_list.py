"""Chats as a list to choose from."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from rich.console import Console
from rich.text import Text

from app.terminal.assembler import Json
from app.terminal.text import one_line

# An id begins with the time to the millisecond: so many characters tell two chats apart, but for rare ones.
_SHORT: Final = 13


def short_ids(ids: Sequence[str]) -> dict[str, str]:
    """For each id the shortest beginning that no other one of them has, and not less than a person expects."""
    ordered = sorted(ids)
    short = {}
    for place, identity in enumerate(ordered):
        peers = ordered[max(0, place - 1) : place] + ordered[place + 1 : place + 2]
        length = max([_SHORT, *(_common(identity, other) + 1 for other in peers)])
        short[identity] = identity[:length]
    return short


def _common(left: str, right: str) -> int:
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def print_chats(console: Console, chats: Sequence[Json], now: datetime) -> None:
    if not chats:
        console.print(Text("There is no chat yet.", "dim"))
    short = short_ids([chat["id"] for chat in chats])
    for number, chat in enumerate(chats, start=1):
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(f"{number:>3}  ", "dim")
        line.append(short[chat["id"]])
        line.append(f"  {_when(chat['updated_at'], now):>10}  ", "dim")
        line.append(title_of(chat))
        console.print(line)


def plain_chats(chats: Sequence[Json]) -> str:
    """One line per chat for other programs: id, time of the last change and title, with tabs between."""
    return "".join(f"{chat['id']}\t{chat['updated_at']}\t{title_of(chat)}\n" for chat in chats)


def title_of(chat: Json) -> str:
    return one_line(chat["title"] or "(no title)")


def _when(time: str, now: datetime) -> str:
    then = datetime.fromisoformat(time).astimezone(now.tzinfo)
    return f"{then:%H:%M}" if then.date() == now.date() else f"{then:%Y-%m-%d}"

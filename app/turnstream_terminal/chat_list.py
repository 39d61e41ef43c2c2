"""Prints lists of chats, for a person to choose from and for other programs to read."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

from rich.console import Console
from rich.text import Text

from turnstream_client.events import Json
from turnstream_terminal.text import common_length, one_line

# An id begins with the time of its creation in milliseconds (12 digits and a hyphen), so a prefix of this length is
# nearly always unique.
_SHORTEST: Final = 13


def short_ids(ids: Sequence[str]) -> dict[str, str]:
    """Maps each id to its shortest unique prefix."""
    ordered = sorted(ids)
    short = {}
    for index, identity in enumerate(ordered):
        neighbours = ordered[max(0, index - 1) : index] + ordered[index + 1 : index + 2]
        length = max([_SHORTEST, *(common_length(identity, other) + 1 for other in neighbours)])
        short[identity] = identity[:length]
    return short


def print_chats(console: Console, chats: Sequence[Json], now: datetime, excerpts: bool = False) -> None:
    """Prints numbered chats. With `excerpts`, the chats are matches of a search, and a line with its excerpt follows
    each chat.
    """
    if not chats:
        console.print(Text("Nothing was found." if excerpts else "There are no chats yet.", "dim"))
    short = short_ids([chat["id"] for chat in chats])
    for number, chat in enumerate(chats, start=1):
        changed = datetime.fromisoformat(chat["updated_at"]).astimezone(now.tzinfo)
        when = f"{changed:%H:%M}" if changed.date() == now.date() else f"{changed:%Y-%m-%d}"
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(f"{number:>3}  ", "dim")
        line.append(short[chat["id"]])
        line.append(f"  {when:>10}  ", "dim")
        if chat.get("jobs"):
            line.append(f"({chat['jobs']} running) ", "cyan")
        line.append(title_of(chat))
        console.print(line)
        if excerpts and chat["excerpt"]:
            match = Text("     ", no_wrap=True, overflow="ellipsis")
            for piece in chat["excerpt"]["pieces"]:
                match.append(one_line(piece["text"]), "bold" if piece["found"] else "dim")
            console.print(match)


def print_turns(console: Console, turns: Sequence[Json], shown: Collection[str]) -> None:
    """Prints numbered turns of several branches, and marks the turns whose ids are in `shown`."""
    for number, turn in enumerate(turns, start=1):
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(f"{number:>3} {'*' if turn['id'] in shown else ' '} ", "dim")
        line.append("> " if turn["role"] == "user" else "  ")
        line.append(one_line(" ".join(block["text"] for block in turn["blocks"] if block["type"] == "text")))
        console.print(line)


def plain_chats(chats: Sequence[Json]) -> str:
    """Returns one line per chat for other programs: id, time of the last change and title, separated by tabs."""
    return "".join(f"{chat['id']}\t{chat['updated_at']}\t{title_of(chat)}\n" for chat in chats)


def title_of(chat: Json) -> str:
    return one_line(chat["title"] or "(no title)")

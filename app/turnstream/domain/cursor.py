"""Cursors: positions in the content of a turn, which are the ids of its events."""

import re
from typing import NamedTuple

_FORM = re.compile("(0|[1-9][0-9]{0,8})-(0|[1-9][0-9]{0,8})-(0|[1-9][0-9]{0,14})")


class Cursor(NamedTuple):
    """The position up to which a client has received a turn: `attempt` wrote the client's content, `place` counts the
    passed marks, `offset` the characters of the text after them. Cursors of one turn compare as tuples, and only grow.
    """

    attempt: int = 0
    place: int = 0
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.attempt}-{self.place}-{self.offset}"

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """Raises ValueError for a text that is no cursor."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise ValueError("a cursor is the id of an event, such as 1-4-120")
        return cls(*map(int, found.groups()))


START = Cursor()

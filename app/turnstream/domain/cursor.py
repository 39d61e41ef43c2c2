"""Cursors: positions in the content of a turn. The ids of events are cursors."""

import re
from typing import NamedTuple

_FORM = re.compile("(0|[1-9][0-9]{0,8})-(0|[1-9][0-9]{0,8})-(0|[1-9][0-9]{0,14})")


class Cursor(NamedTuple):
    """The end of the content that a client has received. The attempt `attempt` wrote it, `place` counts the received
    marks, `offset` the characters after the last mark. Cursors of one turn compare as tuples, and only grow.
    """

    attempt: int = 0
    place: int = 0
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.attempt}-{self.place}-{self.offset}"

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """Parses the id of an event. Raises ValueError if `text` is not a cursor."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise ValueError("a cursor is the id of an event, such as 1-4-120")
        return cls(*map(int, found.groups()))


START = Cursor()

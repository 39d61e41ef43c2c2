"""A queue that alternates between owners."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """The first item of an owner precedes the second item of any other owner."""

    def __init__(self) -> None:
        self._owners: OrderedDict[str, deque[T]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, owner: str, item: T) -> None:
        self._owners.setdefault(owner, deque()).append(item)
        self._size += 1

    @property
    def head(self) -> T | None:
        return next(iter(self._owners.values()))[0] if self._owners else None

    def remove(self, owner: str, item: T) -> None:
        """Removes the item. If it was the head, the next owner is served."""
        waiting = self._owners[owner]
        was_head = item is self.head
        waiting.remove(item)
        self._size -= 1
        if not waiting:
            del self._owners[owner]
        elif was_head:
            self._owners.move_to_end(owner)

    def heads(self, most: int) -> list[T]:
        """Returns the next items in order, at most `most`."""
        found: list[T] = []
        for place in range(most):
            row = [waiting[place] for waiting in self._owners.values() if len(waiting) > place]
            found += row
            if not row or len(found) >= most:
                break
        return found[:most]

    def ahead_of(self, owner: str, item: T) -> int:
        """Returns the approximate number of items before this item."""
        place = self._owners[owner].index(item)
        return min(self._size - 1, place * len(self._owners) + list(self._owners).index(owner))

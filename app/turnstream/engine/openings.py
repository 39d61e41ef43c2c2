"""A limit on simultaneous openings of model calls: a burst of turns must not delay streaming turns."""

import asyncio
from collections.abc import Callable

# Model calls that open at once, and the longest time in seconds for which a call keeps its slot: about the event loop's
# work for all of them. A slower opening, such as a call of a silent provider, loses its slot.
SLOTS = 4
LONGEST = 0.02


class Openings:
    """Slots for model calls from the start of a request to the start of its reply. Calls get them in order. A slot is
    freed after `longest` seconds in any case.
    """

    def __init__(self, slots: int = SLOTS, longest: float = LONGEST) -> None:
        self._free = asyncio.Semaphore(slots)
        self._longest = longest

    async def enter(self) -> Callable[[], None]:
        """Waits for a slot. Returns a function to free it, which may be called repeatedly."""
        await self._free.acquire()
        held = True

        def leave() -> None:
            nonlocal held
            if held:
                held = False
                timer.cancel()
                self._free.release()

        timer = asyncio.get_running_loop().call_later(self._longest, leave)
        return leave

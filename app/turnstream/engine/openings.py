"""A limit for model calls that open at the same time, so that a burst of turns does not delay streaming turns."""

import asyncio
from collections.abc import Callable

# SLOTS is the number of model calls that may open at once. LONGEST is the time in seconds after which a slow opening,
# such as a call of a silent provider, loses its slot: about the time that the event loop needs to open all of them.
SLOTS = 4
LONGEST = 0.02


class Openings:
    """Slots for model calls. A call holds a slot from the start of its request to the start of its reply, but for at
    most `longest` seconds. Waiting calls get slots in their order.
    """

    def __init__(self, slots: int = SLOTS, longest: float = LONGEST) -> None:
        self._free = asyncio.Semaphore(slots)
        self._longest = longest

    async def enter(self) -> Callable[[], None]:
        """Waits for a slot. Returns a function that frees the slot, and that may be called repeatedly."""
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

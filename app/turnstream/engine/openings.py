"""A gate over the openings of model calls: a burst of turns does not block the event loop for streaming turns."""

import asyncio
from collections.abc import Callable

# Model calls that are opened at once, and the seconds for which one counts at most: about the time that the event loop
# works for all of them. A slower opening frees its slot, such as a call of a silent provider.
SLOTS = 4
LONGEST = 0.02


class Openings:
    """Slots for model calls between the building of a request and the beginning of its reply. They are given in the
    order of the calls. A slot is free again after `longest` seconds, whatever the provider does.
    """

    def __init__(self, slots: int = SLOTS, longest: float = LONGEST) -> None:
        self._free = asyncio.Semaphore(slots)
        self._longest = longest

    async def enter(self) -> Callable[[], None]:
        """Waits for a slot. Returns a function that gives it back, which may be called more than once."""
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

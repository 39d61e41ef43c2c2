"""Notices to the supervisor of this process, in the protocol of systemd (sd_notify). With `serve --workers`, the
supervisor of a worker process is its parent process.
"""

import asyncio
import os
import socket
from contextlib import suppress

READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"
_SIGNS = 10  # signs of life within the time after which the supervisor kills a silent process


def notify_supervisor(state: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET")  # noqa: TID251, of the supervisor's protocol and no setting
    if not address:
        return
    # Does not wait for a supervisor that no longer listens. If the supervisor is stopped, the queue of its socket fills
    # up: only the start notice, which must arrive, waits for room.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as supervisor:
        supervisor.setblocking(state == READY)
        # An abstract socket's zero byte is written as @.
        supervisor.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)


def patience_of_supervisor() -> float | None:
    """Returns the seconds without a sign of life after which the supervisor kills this process, or None."""
    microseconds, process = (os.environ.get(name) for name in ("WATCHDOG_USEC", "WATCHDOG_PID"))  # noqa: TID251
    if not microseconds or process not in {None, str(os.getpid())}:
        return None
    return int(microseconds) / 1e6


async def send_signs_of_life() -> None:
    """Runs in the event loop: each sign shows that the loop is not blocked."""
    if patience := patience_of_supervisor():
        while True:
            notify_supervisor(ALIVE)
            await asyncio.sleep(patience / _SIGNS)

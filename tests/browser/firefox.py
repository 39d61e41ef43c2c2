"""`python -m tests.browser.firefox FIREFOX …` runs Debian's Firefox for Playwright.

Playwright drives an unpatched Firefox with WebDriver BiDi, and sends a command that the ESR version does not support. A
relay in front of the browser answers this command.
"""

import asyncio
import json
import re
import sys
from functools import partial

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve

_UNKNOWN = "emulation.setMediaFeaturesOverride"
_LISTENING = re.compile(r"(?<=WebDriver BiDi listening on )ws://\S+")


async def _relay(address: str, playwright: ServerConnection) -> None:
    async with connect(f"{address}/session", max_size=None) as firefox, asyncio.TaskGroup() as group:
        answers = group.create_task(_pass_on(firefox, playwright))
        async for message in playwright:
            command = json.loads(message)
            if command["method"] == _UNKNOWN:
                await playwright.send(json.dumps({"type": "success", "id": command["id"], "result": {}}))
            else:
                await firefox.send(message)
        answers.cancel()


async def _pass_on(firefox: ClientConnection, playwright: ServerConnection) -> None:
    async for message in firefox:
        await playwright.send(message)


async def _run(*command: str) -> int:
    """Runs the browser until it exits. From the browser's stderr, Playwright reads the address to which it connects."""
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    async for line in process.stderr:
        text = line.decode(errors="replace")
        if found := _LISTENING.search(text):
            server = await serve(partial(_relay, found[0]), "127.0.0.1", 0, max_size=None)
            port = server.sockets[0].getsockname()[1]
            text = text.replace(found[0], f"ws://127.0.0.1:{port}")
        sys.stderr.write(text)
        sys.stderr.flush()
    return await process.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(_run(*sys.argv[1:])))

"""What an operator sees of the process: its log and its end."""

import asyncio
import json

from tests.acceptance.conftest import StartServer


async def test_every_log_line_is_json_and_sigterm_exits_with_0(
    server: StartServer,
) -> None:
    running = await server()
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(b"GARBAGE\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
    writer.close()
    await writer.wait_closed()
    assert await running.terminate() == 0
    lines = [json.loads(line) for line in running.logs.splitlines() if line.startswith(("{", "WARN", "ERR", "INFO"))]
    assert [line["event"] for line in lines] == ["model.demo", "library.warning"]
    assert lines[1]["logger"] == "uvicorn.error"

"""What an operator sees of the process: its log and its end."""

import asyncio
import json

from tests.acceptance.conftest import StartServer


async def test_every_line_of_the_log_is_json_also_what_a_library_says_and_the_end_is_a_good_one(
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

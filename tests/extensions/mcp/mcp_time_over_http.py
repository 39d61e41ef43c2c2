"""Serves the tools of mcp-server-time at http://127.0.0.1:PORT/mcp.

`python -m tests.extensions.mcp.mcp_time_over_http PORT` starts the server. With `--old`, it speaks a protocol from
before 2026-07-28, which has a handshake and sessions.
"""

import sys

import uvicorn
from mcp_server_time.server import create_server  # type: ignore[import-untyped]
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send


def old(app: ASGIApp) -> ASGIApp:
    """Rejects `server/discover` with status 404, as an older server does."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if (b"mcp-method", b"server/discover") in scope.get("headers", ()):
            await Response(status_code=404)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return answer


if __name__ == "__main__":
    app: ASGIApp = create_server("UTC").streamable_http_app()
    uvicorn.run(old(app) if "--old" in sys.argv else app, host="127.0.0.1", port=int(sys.argv[1]))

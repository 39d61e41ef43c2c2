"""Receives the webhook about waiting calls (docs/approvals.md), and delivers each link to its approver. A real program
sends a mail; this example prints a line.
"""

import os
import time

from aiohttp import web

from turnstream import verify

SECRET = os.environ["TURNSTREAM_WEBHOOK_SECRET"]


async def receive(request: web.Request) -> web.Response:
    body = await request.read()
    if not verify(SECRET, request.headers, body, now=time.time()):
        return web.Response(status=401, text="This was not sent by our chat server.")
    event = await request.json()
    if event["type"] == "turn.waiting":
        for call in event["data"]["calls"]:
            for link in call.get("links", []):
                print(f"{link['for']} decides about {call['name']}: {link['url']}", flush=True)
    return web.Response(status=204)


app = web.Application()
app.router.add_post("/", receive)

if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8300")), print=None)

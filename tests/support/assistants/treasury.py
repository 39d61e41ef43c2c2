"""Tools that move money, the bank that they call, and the script of the treasurer's model."""

import asyncio
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from tests.support.assistants.model import Conversation, Said, Use
from turnstream.tools.tool import ToolContext, tool


@tool(approval="always")
async def transfer(context: ToolContext, to: str, euros: int) -> str:
    """Transfers money."""
    return await _order(context, to, euros)


@tool(approval="always", approval_expiry=0.3)
async def offer(context: ToolContext, to: str, euros: int) -> str:
    """Transfers money for an offer with an early end."""
    return await _order(context, to, euros)


async def _order(context: ToolContext, to: str, euros: int) -> str:
    order = {"to": to, "euros": euros, "key": context.idempotency_key}
    async with aiohttp.ClientSession() as session, session.post(os.environ["BANK_URL"], json=order) as response:
        return await response.text()


toolset = [transfer, offer]


def treasurer(conversation: Conversation) -> Iterable[Said]:
    """A model that obeys messages such as `transfer ada 10, offer bob 20`, and then reports the results."""
    if conversation.answered:
        return [" ".join(f"[{answer.text}]" for answer in conversation.answered)]
    orders = re.findall(r"(transfer|offer) (\w+) (\d+)", conversation.question)
    return [Use(name, {"to": to, "euros": int(euros)}) for name, to, euros in orders]


@dataclass
class Bank:
    """The bank. `paid` has all amounts that were ever paid to each person. A payment to a person in `slow` waits until
    `closed` is set.
    """

    paid: dict[str, list[int]] = field(default_factory=dict)
    slow: frozenset[str] = frozenset()
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def pay(self, request: web.Request) -> web.Response:
        order = await request.json()
        self.paid.setdefault(order["to"], []).append(order["euros"])
        if order["to"] in self.slow:
            self.reached.set()
            await self.closed.wait()
        return web.Response(text=f"{order['euros']} euros to {order['to']}")

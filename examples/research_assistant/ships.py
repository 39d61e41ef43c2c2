"""A tool that orders a count from an office. The office later posts the result to the given path, with the token."""

import os

import aiohttp

from turnstream import Detached, ToolContext, tool


@tool(background=True, retry_safe=True, timeout=24 * 3600)
async def count_ships(year: int, context: ToolContext) -> Detached:
    """Counts the ships of a year."""
    if context.handle is not None:
        return Detached(context.handle)
    address = await context.result_address()
    order = {"year": year, "key": context.idempotency_key, "path": address.path, "token": address.token}
    async with aiohttp.ClientSession() as session, session.post(os.environ["OFFICE_URL"], json=order) as answer:
        answer.raise_for_status()
    return Detached({"ordered": year}, message="ordered at the office")

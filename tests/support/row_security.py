"""The role of the API in a database of tests."""

from turnstream.storage.row_security import admit, embedded_api_url


async def admit_api(url: str) -> None:
    """Grants the role the same rights as a server does at its start."""
    await admit(url, await embedded_api_url(url))

"""Stores and removes the sample documents of the demo."""

from turnstream.extensions.documents.store import Documents
from turnstream.extensions.documents.tools import sample_documents


async def offer_samples(documents: Documents, owner: str) -> None:
    """Stores the samples for the owner if the owner has no document."""
    if not await documents.tree(owner, limit=1):
        for path, content in sample_documents().items():
            await documents.put(owner, path, content)


async def drop_samples(documents: Documents, owner: str) -> list[str]:
    """Deletes those samples of the owner that were not changed. Returns their paths."""
    unchanged = [path for path, content in sample_documents().items() if await documents.read(owner, path) == content]
    for path in unchanged:
        await documents.delete(owner, path)
    return unchanged

"""Sample documents for the demo."""

from turnstream.extensions.documents.store import Documents
from turnstream.extensions.documents.tools import sample_documents


async def offer_samples(documents: Documents, owner: str) -> None:
    """Stores the samples for an owner who has no document."""
    if not await documents.tree(owner, limit=1):
        for path, content in sample_documents().items():
            await documents.put(owner, path, content)


async def drop_samples(documents: Documents, owner: str) -> list[str]:
    """Deletes unchanged samples from the owner's documents. Returns their paths."""
    unchanged = [path for path, content in sample_documents().items() if await documents.read(owner, path) == content]
    for path in unchanged:
        await documents.delete(owner, path)
    return unchanged

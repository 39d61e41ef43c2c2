"""The documents that the demo has something to look at with."""

from app.storage.documents import Documents
from app.tools.library.documents import sample_documents


async def offer_samples(documents: Documents, owner: str) -> None:
    """To an owner who has no document."""
    if not await documents.tree(owner, limit=1):
        for path, content in sample_documents().items():
            await documents.put(owner, path, content)


async def drop_samples(documents: Documents, owner: str) -> None:
    """Those that are as they were offered: beside documents of the owner's own they would be taken for theirs."""
    for path, content in sample_documents().items():
        if await documents.read(owner, path) == content:
            await documents.delete(owner, path)

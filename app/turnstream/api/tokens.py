"""The handler that returns the rights of a credential."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.schemas.responses import IdentityOut
from turnstream.api.services import identity_of, services_of
from turnstream.api.views import json_response
from turnstream.domain.identity import Identity, checked_scopes


async def get_identity(request: Request) -> Response:
    features = sorted(name for name, state in services_of(request).states.items() if state is not None)
    return json_response(IdentityOut(**shown(identity_of(request)), features=features))


def shown(identity: Identity) -> dict[str, Any]:
    """Returns the members of the response. Fixed options are shown by name only: a page need not know the prompt."""
    return {
        "owner": identity.owner,
        "scopes": checked_scopes(identity.scopes),
        "chat": identity.chat,
        "turn": identity.turn,
        "expires_at": identity.expires_at,
        "documents": identity.folder,
        "fixed": sorted(identity.fixed),
    }

"""The call that exchanges a credential for a browser token."""

from turnstream.api.http.call_group import CallGroup
from turnstream.api.http.endpoint import Endpoint
from turnstream.extensions.browsers.endpoints import create_token
from turnstream.extensions.browsers.schemas import BrowserTokenIn, BrowserTokenOut

CALLS = CallGroup(
    (
        Endpoint(
            "POST /api/tokens",
            create_token,
            "Exchange the credential for a short-lived token that allows less, for a browser",
            BrowserTokenIn,
            BrowserTokenOut,
            problems=(404,),
            scopes=("read", "send", "chat", "approve"),
            limits=("writes",),
        ),
    ),
    "Tokens",
)

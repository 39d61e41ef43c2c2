"""Request and response of the call that exchanges a credential for a browser token."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field

from turnstream.api.schemas.fields import Body, Storable
from turnstream.api.schemas.requests import FixedOptions
from turnstream.api.schemas.responses import IdentityOut
from turnstream.domain.identity import LONGEST_OWNER, SCOPES, Scope


class BrowserTokenIn(Body):
    """The rights of the new token. They may not exceed the rights of the request's credential. `owner` and `plan` need
    the scope `admin`, with which a backend makes tokens for its users.
    """

    scopes: Annotated[list[Scope] | None, Field(min_length=1, max_length=len(SCOPES))] = None
    chat: Annotated[UUID | None, Field(description="the only chat that it reaches")] = None
    turn: Annotated[UUID | None, Field(description="the only turn of the chat that it reaches")] = None
    seconds: Annotated[int | None, Field(ge=1, description="its life; 900 without it")] = None
    owner: Annotated[Storable | None, Field(min_length=1, max_length=LONGEST_OWNER)] = None
    plan: Annotated[Storable | None, Field(min_length=1, max_length=100)] = None
    documents: Annotated[
        Storable | None,
        Field(
            min_length=1,
            max_length=1024,
            description="folder of documents that its messages may name and its turns' tools may read; none without it",
        ),
    ] = None
    fixed: Annotated[FixedOptions | None, Field(description="options of all turns that it posts")] = None


class BrowserTokenOut(IdentityOut):
    token: Annotated[str, Field(description="shown only here; send it as the bearer token")]
    expires_at: datetime

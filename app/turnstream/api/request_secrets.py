"""Handles the secrets of tools in requests before the requests are stored. The API shows masks instead of secrets."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from turnstream.api.schemas.requests import ChatSettings, FixedOptions, NewTurn, Params, TurnOptions
from turnstream.api.schemas.tools import HttpToolIn, ToolIn
from turnstream.domain.errors import RequestRefused
from turnstream.domain.secret_headers import SERVERS_OF_PARAMS, has_secrets, servers_of
from turnstream.storage.chats.exchanges import Position
from turnstream.tools.secrets import ToolSecrets

AnyOptions = TypeVar("AnyOptions", TurnOptions, NewTurn, ChatSettings, FixedOptions)


class RequestSecrets(ToolSecrets):
    """Refuses requests that contain secrets of tools. The extension `keys` has a subclass that stores the secrets, and
    encrypts them if it `encrypts`.
    """

    encrypts = False

    async def sealed(
        self,
        owner: str,  # noqa: ARG002
        options: AnyOptions,
        field: str,  # noqa: ARG002
        check: Callable[[HttpToolIn, str], None],  # noqa: ARG002
    ) -> AnyOptions:
        """Encrypts the secrets in the options. Each tool is first passed to `check` with its field, because encrypted
        headers cannot be checked. Raises RequestRefused.
        """
        return options

    def may_differ(self, known: Position) -> bool:  # noqa: ARG002
        """Whether rows may have secrets in another form by now: encrypted, or encrypted with another key."""
        return False

    def unmasked(self, tools: Sequence[ToolIn], stored: Sequence[Any], field: str) -> Sequence[ToolIn]:  # noqa: ARG002
        """Replaces masked secrets by the secrets of the stored tool with the same name and URL, so that no other host
        gets the secrets. Raises RequestRefused for a mask without a stored secret.
        """
        for place, tool in enumerate(tools):
            if not isinstance(tool, str) and has_secrets(tool.model_dump()):
                raise _refused(f"{field}.{place}")
        return tools

    def unmasked_params(self, params: Params | None, stored: Mapping[str, Any], field: str) -> Params | None:  # noqa: ARG002
        """Replaces the masked secrets of the servers in parameters."""
        if params is not None and any(map(has_secrets, servers_of(params.given))):
            raise _refused(f"{field}.{SERVERS_OF_PARAMS}")
        return params


def _refused(field: str) -> RequestRefused:
    return RequestRefused(
        f"`{field}` must have no secrets: this server lacks the extension `keys`, which encrypts them. The operator can"
        " add `keys` to TURNSTREAM_EXTENSIONS.",
        field=field,
    )

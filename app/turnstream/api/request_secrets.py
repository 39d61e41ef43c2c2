"""Secrets of tools in requests, before their storage. The API shows masked secrets."""

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
    """Stores secrets of tools if it `encrypts`. Without the extension `keys`, requests with secrets are refused."""

    encrypts = False

    async def sealed(
        self,
        owner: str,  # noqa: ARG002
        options: AnyOptions,
        field: str,  # noqa: ARG002
        check: Callable[[HttpToolIn, str], None],  # noqa: ARG002
    ) -> AnyOptions:
        """The options with encrypted secrets. `check` gets each tool and its field before: afterwards its headers
        cannot be seen. Raises RequestRefused.
        """
        return options

    def may_differ(self, known: Position) -> bool:  # noqa: ARG002
        """Whether rows may have secrets in another form by now: encrypted, or by another key."""
        return False

    def unmasked(self, tools: Sequence[ToolIn], stored: Sequence[Any], field: str) -> Sequence[ToolIn]:  # noqa: ARG002
        """The tools with masked secrets replaced by the secrets of the stored tool with the same name and URL, so that
        no other host gets them. Raises RequestRefused for a mask without a stored secret.
        """
        for place, tool in enumerate(tools):
            if not isinstance(tool, str) and has_secrets(tool.model_dump()):
                raise _refused(f"{field}.{place}")
        return tools

    def unmasked_params(self, params: Params | None, stored: Mapping[str, Any], field: str) -> Params | None:  # noqa: ARG002
        """The servers in parameters with replaced masked secrets."""
        if params is not None and any(map(has_secrets, servers_of(params.given))):
            raise _refused(f"{field}.{SERVERS_OF_PARAMS}")
        return params


def _refused(field: str) -> RequestRefused:
    return RequestRefused(
        f"`{field}` must have no secrets: this server lacks the extension `keys`, which encrypts them. The operator can"
        " add `keys` to TURNSTREAM_EXTENSIONS.",
        field=field,
    )

"""Google tokens for Vertex AI, from the application default credentials of the machine."""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import google.auth
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import Request

from turnstream.domain.errors import AccountRefused, TransientError
from turnstream.llm.provider import report_account

_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)


class GoogleTokens:
    """Gets access tokens from Google. The first call finds the credentials. One thread at a time refreshes them, as the
    library requires.
    """

    def __init__(self) -> None:
        self._credentials: Any = None
        self._lock = threading.Lock()

    async def headers(self) -> Mapping[str, str]:
        """Returns the header that authorizes a request. Raises TransientError or AccountRefused."""
        try:
            return {"Authorization": f"Bearer {await asyncio.to_thread(self._token)}"}
        except GoogleAuthError as error:
            if isinstance(error, TransportError) or error.retryable:
                raise TransientError("connection_error", "The server of Google's credentials failed.") from error
            refused = AccountRefused("authentication_error", f"The credentials of Google are not usable: {error}")
            report_account(refused)
            raise refused from error

    def _token(self) -> str:
        with self._lock:
            if self._credentials is None:
                self._credentials, _ = google.auth.default(scopes=_SCOPES)
            if not self._credentials.valid:
                self._credentials.refresh(Request())
            return str(self._credentials.token)

"""Fixtures of the API's tests."""

from tests.integration.api.conftest import document, plain_logs, server

__all__ = ("document", "plain_logs", "server")

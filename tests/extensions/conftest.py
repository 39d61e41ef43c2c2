"""Shared fixtures. Each folder is named after the extension that it tests."""

from tests.integration.api.conftest import api, database, document, new_owner, server
from tests.integration.conftest import attempts_are_counted, harness

__all__ = ("api", "attempts_are_counted", "database", "document", "harness", "new_owner", "server")

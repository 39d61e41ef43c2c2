"""Shared fixtures. Each folder has the name of its extension."""

from tests.integration.api.conftest import api, database, document, new_owner, server
from tests.integration.conftest import attempts_are_counted, harness

__all__ = ("api", "attempts_are_counted", "database", "document", "harness", "new_owner", "server")

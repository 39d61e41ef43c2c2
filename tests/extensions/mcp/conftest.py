from tests.integration.api.conftest import document, server

__all__ = ("document", "server")

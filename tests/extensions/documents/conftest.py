from tests.unit.tools.conftest import context, progress

__all__ = ("context", "progress")

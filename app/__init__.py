"""The public interface for programs that embed turnstream: everything here is stable (docs/stability.md).

Names are imported on first use, so that `import app` costs nothing and the terminal client loads no server.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.api.identity.way import Authenticate as Authenticate
    from app.config import Settings as Settings
    from app.config import read_settings as read_settings
    from app.domain.errors import ClaimLost as ClaimLost
    from app.domain.errors import ConfigError as ConfigError
    from app.domain.errors import Conflict as Conflict
    from app.domain.errors import Forbidden as Forbidden
    from app.domain.errors import NotFound as NotFound
    from app.domain.errors import PermanentError as PermanentError
    from app.domain.errors import ProviderError as ProviderError
    from app.domain.errors import RequestRefused as RequestRefused
    from app.domain.errors import StorageUnavailable as StorageUnavailable
    from app.domain.errors import TransientError as TransientError
    from app.domain.errors import TurnstreamError as TurnstreamError
    from app.domain.errors import Unauthorized as Unauthorized
    from app.domain.identity import Identity as Identity
    from app.domain.plans import Plan as Plan
    from app.domain.turns import ToolSpec as ToolSpec
    from app.engine.hooks import AfterRound as AfterRound
    from app.engine.hooks import AfterTool as AfterTool
    from app.engine.hooks import BeforeAttempt as BeforeAttempt
    from app.engine.hooks import BeforeTool as BeforeTool
    from app.engine.hooks import Hooks as Hooks
    from app.engine.hooks import OutputRejected as OutputRejected
    from app.engine.hooks import TurnEnded as TurnEnded
    from app.kit.signature import verify as verify
    from app.main import create_app as create_app
    from app.main import lifespan as lifespan
    from app.telemetry import Metrics as Metrics
    from app.tools.assembly import ToolSettings as ToolSettings
    from app.tools.assembly import open_toolset as open_toolset
    from app.tools.library.documents import Library as Library
    from app.tools.library.documents import document_tools as document_tools
    from app.tools.outputs import Outputs as Outputs
    from app.tools.policy import Breaker as Breaker
    from app.tools.policy import Fallback as Fallback
    from app.tools.policy import Policy as Policy
    from app.tools.policy import Summarise as Summarise
    from app.tools.tool import File as File
    from app.tools.tool import Outcome as Outcome
    from app.tools.tool import Tool as Tool
    from app.tools.tool import ToolContext as ToolContext
    from app.tools.tool import ToolError as ToolError
    from app.tools.tool import ToolResult as ToolResult
    from app.tools.tool import ToolSource as ToolSource
    from app.tools.tool import ToolUnavailable as ToolUnavailable
    from app.tools.tool import tool as tool
    from app.tools.tool import tools_of as tools_of
    from app.tools.toolset import Toolset as Toolset

_HOMES: Mapping[str, tuple[str, ...]] = {
    "app.api.identity.way": ("Authenticate",),
    "app.config": ("Settings", "read_settings"),
    "app.domain.errors": (
        "ClaimLost",
        "ConfigError",
        "Conflict",
        "Forbidden",
        "NotFound",
        "PermanentError",
        "ProviderError",
        "RequestRefused",
        "StorageUnavailable",
        "TransientError",
        "TurnstreamError",
        "Unauthorized",
    ),
    "app.domain.identity": ("Identity",),
    "app.domain.plans": ("Plan",),
    "app.domain.turns": ("ToolSpec",),
    "app.engine.hooks": (
        "AfterRound",
        "AfterTool",
        "BeforeAttempt",
        "BeforeTool",
        "Hooks",
        "OutputRejected",
        "TurnEnded",
    ),
    "app.kit.signature": ("verify",),
    "app.main": ("create_app", "lifespan"),
    "app.telemetry": ("Metrics",),
    "app.tools.assembly": ("ToolSettings", "open_toolset"),
    "app.tools.library.documents": ("Library", "document_tools"),
    "app.tools.outputs": ("Outputs",),
    "app.tools.policy": ("Breaker", "Fallback", "Policy", "Summarise"),
    "app.tools.tool": (
        "File",
        "Outcome",
        "Tool",
        "ToolContext",
        "ToolError",
        "ToolResult",
        "ToolSource",
        "ToolUnavailable",
        "tool",
        "tools_of",
    ),
    "app.tools.toolset": ("Toolset",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'app' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""The public interface for programs that embed turnstream: everything here is stable (docs/stability.md).

Names are imported on first use, so that `import turnstream` costs nothing and the terminal client loads no server.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnstream.api.identity.authenticator import Authenticate as Authenticate
    from turnstream.config import Section as Section
    from turnstream.config import Settings as Settings
    from turnstream.domain.errors import ClaimLost as ClaimLost
    from turnstream.domain.errors import ConfigError as ConfigError
    from turnstream.domain.errors import Conflict as Conflict
    from turnstream.domain.errors import Forbidden as Forbidden
    from turnstream.domain.errors import NotFound as NotFound
    from turnstream.domain.errors import PermanentError as PermanentError
    from turnstream.domain.errors import ProviderError as ProviderError
    from turnstream.domain.errors import RequestRefused as RequestRefused
    from turnstream.domain.errors import StorageUnavailable as StorageUnavailable
    from turnstream.domain.errors import TransientError as TransientError
    from turnstream.domain.errors import TurnstreamError as TurnstreamError
    from turnstream.domain.errors import Unauthorized as Unauthorized
    from turnstream.domain.identity import Identity as Identity
    from turnstream.domain.plans import Plan as Plan
    from turnstream.domain.turns import ToolSpec as ToolSpec
    from turnstream.engine.hooks import AfterRound as AfterRound
    from turnstream.engine.hooks import AfterTool as AfterTool
    from turnstream.engine.hooks import BeforeAttempt as BeforeAttempt
    from turnstream.engine.hooks import BeforeTool as BeforeTool
    from turnstream.engine.hooks import Hooks as Hooks
    from turnstream.engine.hooks import OutputRejected as OutputRejected
    from turnstream.engine.hooks import TurnEnded as TurnEnded
    from turnstream.extension import Context as Context
    from turnstream.extension import Extension as Extension
    from turnstream.extension import Work as Work
    from turnstream.extension import installed as installed
    from turnstream.extension import read_settings as read_settings
    from turnstream.extensions.documents.tools import Library as Library
    from turnstream.extensions.documents.tools import document_tools as document_tools
    from turnstream.libraries.guards.guard import EndTurn as EndTurn
    from turnstream.libraries.guards.guard import Guard as Guard
    from turnstream.libraries.guards.guard import Mask as Mask
    from turnstream.libraries.guards.guard import Pass as Pass
    from turnstream.libraries.guards.guard import Passage as Passage
    from turnstream.libraries.guards.guard import Replace as Replace
    from turnstream.libraries.guards.guard import Ruling as Ruling
    from turnstream.libraries.guards.guard import TakeBack as TakeBack
    from turnstream.libraries.guards.guard import TextSpan as TextSpan
    from turnstream.libraries.outgoing.signature import verify as verify
    from turnstream.libraries.tool_sources.programs import ToolSettings as ToolSettings
    from turnstream.libraries.tool_sources.programs import open_toolset as open_toolset
    from turnstream.llm.models.api import CallOptions as CallOptions
    from turnstream.llm.models.api import ModelApi as ModelApi
    from turnstream.llm.models.api import ProviderSpec as ProviderSpec
    from turnstream.llm.parameters import Parameter as Parameter
    from turnstream.llm.provider import BlockClosed as BlockClosed
    from turnstream.llm.provider import BlockData as BlockData
    from turnstream.llm.provider import BlockOpened as BlockOpened
    from turnstream.llm.provider import BlockText as BlockText
    from turnstream.llm.provider import MessageDelta as MessageDelta
    from turnstream.llm.provider import MessageEnded as MessageEnded
    from turnstream.llm.provider import MessageStarted as MessageStarted
    from turnstream.llm.provider import ModelRequest as ModelRequest
    from turnstream.llm.provider import Part as Part
    from turnstream.llm.provider import Provider as Provider
    from turnstream.main import create_app as create_app
    from turnstream.main import lifespan as lifespan
    from turnstream.telemetry import Metrics as Metrics
    from turnstream.tools.outputs import Outputs as Outputs
    from turnstream.tools.policy import Breaker as Breaker
    from turnstream.tools.policy import Fallback as Fallback
    from turnstream.tools.policy import Policy as Policy
    from turnstream.tools.policy import Summarise as Summarise
    from turnstream.tools.tool import Detached as Detached
    from turnstream.tools.tool import File as File
    from turnstream.tools.tool import Outcome as Outcome
    from turnstream.tools.tool import PersonAnswer as PersonAnswer
    from turnstream.tools.tool import PersonQuestion as PersonQuestion
    from turnstream.tools.tool import ResultAddress as ResultAddress
    from turnstream.tools.tool import StoppedCall as StoppedCall
    from turnstream.tools.tool import Tool as Tool
    from turnstream.tools.tool import ToolContext as ToolContext
    from turnstream.tools.tool import ToolError as ToolError
    from turnstream.tools.tool import ToolResult as ToolResult
    from turnstream.tools.tool import ToolSource as ToolSource
    from turnstream.tools.tool import ToolUnavailable as ToolUnavailable
    from turnstream.tools.tool import tool as tool
    from turnstream.tools.tool import tools_of as tools_of
    from turnstream.tools.toolset import Toolset as Toolset

_HOMES: Mapping[str, tuple[str, ...]] = {
    "turnstream.api.identity.authenticator": ("Authenticate",),
    "turnstream.config": ("Section", "Settings"),
    "turnstream.extension": ("Context", "Extension", "Work", "installed", "read_settings"),
    "turnstream.domain.errors": (
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
    "turnstream.libraries.guards.guard": (
        "EndTurn",
        "Guard",
        "Mask",
        "Pass",
        "Passage",
        "Replace",
        "Ruling",
        "TakeBack",
        "TextSpan",
    ),
    "turnstream.domain.identity": ("Identity",),
    "turnstream.domain.plans": ("Plan",),
    "turnstream.domain.turns": ("ToolSpec",),
    "turnstream.engine.hooks": (
        "AfterRound",
        "AfterTool",
        "BeforeAttempt",
        "BeforeTool",
        "Hooks",
        "OutputRejected",
        "TurnEnded",
    ),
    "turnstream.libraries.outgoing.signature": ("verify",),
    "turnstream.llm.models.api": ("CallOptions", "ModelApi", "ProviderSpec"),
    "turnstream.llm.parameters": ("Parameter",),
    "turnstream.llm.provider": (
        "BlockClosed",
        "BlockData",
        "BlockOpened",
        "BlockText",
        "MessageDelta",
        "MessageEnded",
        "MessageStarted",
        "ModelRequest",
        "Part",
        "Provider",
    ),
    "turnstream.main": ("create_app", "lifespan"),
    "turnstream.telemetry": ("Metrics",),
    "turnstream.libraries.tool_sources.programs": ("ToolSettings", "open_toolset"),
    "turnstream.extensions.documents.tools": ("Library", "document_tools"),
    "turnstream.tools.outputs": ("Outputs",),
    "turnstream.tools.policy": ("Breaker", "Fallback", "Policy", "Summarise"),
    "turnstream.tools.tool": (
        "Detached",
        "File",
        "Outcome",
        "PersonAnswer",
        "PersonQuestion",
        "ResultAddress",
        "StoppedCall",
        "Tool",
        "ToolContext",
        "ToolError",
        "ToolResult",
        "ToolSource",
        "ToolUnavailable",
        "tool",
        "tools_of",
    ),
    "turnstream.tools.toolset": ("Toolset",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'turnstream' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""A tool that somebody else wrote, run by a policy of the operator."""

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, cast

from app.domain.turns import ToolSpec
from app.tools.policy import Policy, PolicyOptions, policy_of
from app.tools.tool import Outcome, Tool, ToolContext

_NOT_FOR_ALL = frozenset({"memo", "retries", "fallback"})


def governed(tool: Tool, options: PolicyOptions) -> Tool:
    """The same with what is chosen in `options`. Raises ValueError for what this tool cannot have."""
    about_the_tool = {key: value for key, value in options.items() if key in _NOT_FOR_ALL}
    policy_of(tool.spec, cast("PolicyOptions", about_the_tool))
    policy = replace(tool.policy, **options)
    return _replaced(tool, policy) or _Governed(tool, policy)


def _replaced(tool: Any, policy: Policy) -> Tool | None:
    """The tool itself may look at its policy: for how to write its results."""
    if is_dataclass(tool) and any(each.name == "policy" for each in fields(tool)):
        return cast("Tool", replace(tool, policy=policy))  # type: ignore[type-var]
    return None


@dataclass(frozen=True, slots=True)
class _Governed:
    tool: Tool
    policy: Policy

    @property
    def spec(self) -> ToolSpec:
        return self.tool.spec

    async def __call__(self, context: ToolContext, input_json: str) -> Outcome:
        return await self.tool(context, input_json)

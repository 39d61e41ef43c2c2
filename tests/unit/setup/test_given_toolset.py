"""The toolset that an embedding program passes to the server."""

from contextlib import AsyncExitStack
from typing import Any

import pytest

from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import Extension, installed
from turnstream.setup.parts import Given, opened_toolset
from turnstream.tools.outputs import Outputs
from turnstream.tools.policy import Summarise
from turnstream.tools.tool import tool
from turnstream.tools.toolset import Toolset


async def judge(*_: Any) -> str:
    return ""


async def test_outputs_that_are_given_beside_a_toolset_are_added_to_its_own() -> None:
    own = Toolset([], outputs=Outputs({"own": judge}, {"own": judge}))
    given = Given(toolset=own, outputs=Outputs({"more": judge}))
    nothing: Any = None  # a toolset that the program passes needs no database
    async with AsyncExitStack() as stack:
        opened = await opened_toolset(Settings(_env_file=None), given, (), nothing, stack)
        assert opened.outputs.validators.keys() == {"own", "more"}
        assert opened.outputs.handlers.keys() == {"own"}
        # the given toolset is unchanged, because the program may pass it to another server
        assert own.outputs.validators.keys() == {"own"}
        alone = await opened_toolset(Settings(_env_file=None), Given(toolset=own), (), nothing, stack)
        assert alone.outputs.validators.keys() == {"own"}


# An example value of each policy that an extension carries out.
VALUES = {"background": True, "cache_seconds": 60, "summarise": Summarise(above=100)}
CARRIED_OUT = [(each, name) for each in installed().values() for name in each.tool_policies]


@pytest.mark.parametrize(("extension", "policy"), CARRIED_OUT, ids=[name for _, name in CARRIED_OUT])
async def test_a_policy_is_refused_if_the_extension_that_carries_it_out_is_left_out(
    extension: Extension, policy: str
) -> None:
    options: dict[str, Any] = {policy: VALUES[policy]}

    @tool(read_only=True, **options)
    async def dig() -> None:
        """Digs."""

    nothing: Any = None
    given, others = Given(toolset=Toolset([dig])), (Extension("other", "another"),)
    async with AsyncExitStack() as stack:
        opened = await opened_toolset(Settings(_env_file=None), given, (extension,), nothing, stack)
        assert opened.runs_jobs == (policy == "background")
        with pytest.raises(ConfigError, match=rf"`{policy}` of the tool dig needs the extension {extension.name},"):
            await opened_toolset(Settings(_env_file=None), given, others, nothing, stack)

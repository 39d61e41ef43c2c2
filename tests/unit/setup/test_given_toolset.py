"""The toolset that an embedding program gives."""

from contextlib import AsyncExitStack
from typing import Any

import pytest

from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import Extension, installed
from turnstream.setup.parts import Given, opened_toolset
from turnstream.tools.outputs import Outputs
from turnstream.tools.tool import tool
from turnstream.tools.toolset import Toolset


async def judge(*_: Any) -> str:
    return ""


async def test_outputs_that_are_given_beside_a_toolset_are_added_to_its_own() -> None:
    own = Toolset([], outputs=Outputs({"own": judge}, {"own": judge}))
    given = Given(toolset=own, outputs=Outputs({"more": judge}))
    nothing: Any = None  # a toolset that is given needs no database
    async with AsyncExitStack() as stack:
        opened = await opened_toolset(Settings(_env_file=None), given, (), nothing, stack)
        assert opened.outputs.validators.keys() == {"own", "more"}
        assert opened.outputs.handlers.keys() == {"own"}
        assert own.outputs.validators.keys() == {"own"}  # it may be given to another server
        alone = await opened_toolset(Settings(_env_file=None), Given(toolset=own), (), nothing, stack)
        assert alone.outputs.validators.keys() == {"own"}


@tool(background=True)
async def dig() -> None:
    """Digs."""


async def test_a_background_tool_is_refused_if_the_extension_that_runs_it_is_left_out() -> None:
    nothing: Any = None
    jobs, given = installed()["jobs"], Given(toolset=Toolset([dig]))
    async with AsyncExitStack() as stack:
        assert (await opened_toolset(Settings(_env_file=None), given, (jobs,), nothing, stack)).runs_jobs
        with pytest.raises(ConfigError, match=r"tool dig needs the extension jobs, .* add jobs to TURN"):
            await opened_toolset(Settings(_env_file=None), given, (Extension("other", "another"),), nothing, stack)

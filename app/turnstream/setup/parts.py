"""The parts of a server, made from its settings or given by an embedding program."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import product

from turnstream.api.identity.authenticator import Authenticate
from turnstream.api.identity.stored import StoredTokens
from turnstream.config import Settings, read_environment
from turnstream.domain.errors import ConfigError, RequestRefused
from turnstream.domain.plans import Plan, Plans
from turnstream.engine.hooks import Hooks
from turnstream.extension import Extension, left_out, model_choice, own_cell, refused
from turnstream.llm.models.catalog import Models
from turnstream.setup.identity import open_ways
from turnstream.setup.policies import tool_limits
from turnstream.setup.toolset import declared_tools, merged, open_toolset
from turnstream.storage.database import Database
from turnstream.storage.owners.tokens import Tokens
from turnstream.tools.outputs import Outputs
from turnstream.tools.toolset import Toolset


@dataclass(frozen=True, slots=True)
class Given:
    """The values that an embedding program passes instead of settings, or besides them."""

    models: Models | None = None
    toolset: Toolset | None = None
    outputs: Outputs | None = None
    authenticate: Authenticate | None = None
    plan_of: Callable[[str], Plan | str | None] | None = None
    hooks: Sequence[Hooks] = ()
    extensions: Sequence[Extension] | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """The objects that an engine needs. `renewal_interval` is the longest time between renewals of the lease, if a copy
    of the database needs one. `master_keys` are the ids of this replica's master keys.
    """

    settings: Settings
    database: Database
    plans: Plans
    models: Models
    toolset: Toolset
    hooks: Sequence[Hooks]
    extensions: Sequence[Extension] = ()
    renewal_interval: float | None = None
    master_keys: Sequence[bytes] = ()


# `serve` creates the parts and exits at the first ConfigError; `doctor` tries each part. `stack` closes opened parts.


def chosen_model(settings: Settings, given: Given, extensions: Sequence[Extension]) -> str:
    """Returns the model of a turn that names none. Raises ConfigError."""
    if given.models is not None:
        return default_among(given.models, settings.model)
    return model_choice(settings, extensions).served()


def default_among(models: Models, name: str | None) -> str:
    """Returns `name`, or the first of the given models if it is None. Raises ConfigError if `name` is not a model."""
    if name is None:
        return next(iter(models.listed()))
    try:
        models.check(name)
    except RequestRefused as error:
        raise ConfigError(error.detail.replace("`model`", "TURNSTREAM_MODEL", 1)) from None
    return name


async def opened_ways(
    settings: Settings, given: Given, extensions: Sequence[Extension], database: Database, stack: AsyncExitStack
) -> tuple[StoredTokens, Sequence[Authenticate]]:
    """Returns the stored tokens, and all ways to authenticate (the stored tokens are one way). Raises ConfigError."""
    cell = own_cell(settings, extensions)
    tokens = Tokens(database, cell)
    stored = StoredTokens(tokens, cell)
    ways = open_ways(settings, database, tokens, stored, given.authenticate, extensions)
    return stored, await stack.enter_async_context(ways)


async def opened_models(
    settings: Settings, given: Given, extensions: Sequence[Extension], stack: AsyncExitStack
) -> Models:
    """Opens the models of the settings, unless the program gives models. Raises ConfigError."""
    models = given.models
    if models is None:
        models = await stack.enter_async_context(model_choice(settings, extensions).open())
    check_chosen(models, settings)
    return models


def check_chosen(models: Models, settings: Settings) -> None:
    """Raises ConfigError if a setting names a model that does not exist."""
    if settings.summary_model is not None:
        try:
            models.check(settings.summary_model)
        except RequestRefused as error:
            raise ConfigError(error.detail.replace("`model`", "TURNSTREAM_SUMMARY_MODEL", 1)) from None


async def check_extensions(extensions: Sequence[Extension], settings: Settings, models: Models) -> None:
    """Runs the checks of all extensions. Raises ConfigError for a fault."""
    for extension in extensions:
        for check in extension.checks.values():
            await check(settings, models, False)


async def opened_toolset(
    settings: Settings,
    given: Given,
    extensions: Sequence[Extension],
    database: Database,
    stack: AsyncExitStack,
    *,
    connect: bool = True,
) -> Toolset:
    """Raises ConfigError. A source that cannot connect has no tools yet. Without `connect`, no source connects."""
    if given.toolset is not None:
        toolset = copy(given.toolset)
        toolset.outputs = merged(toolset.outputs, given.outputs or toolset.outputs)
        return _carried_out(toolset, extensions)
    own = [tool for extension in extensions for tool in extension.tools(settings, database)]
    environment = read_environment()
    declare = partial(declared_tools, settings, extensions, environment)
    limits = tool_limits(settings)
    opened = open_toolset(own, settings.toolset, declare, limits, environment, given.outputs, connect=connect)
    return _carried_out(await stack.enter_async_context(opened), extensions)


def _carried_out(toolset: Toolset, extensions: Sequence[Extension]) -> Toolset:
    """Raises ConfigError if a tool's policy needs a missing extension: the turn of a background tool would wait for
    ever. If a source adds background tools later, their calls get an error.
    """
    carried = {name for extension in extensions for name in extension.tool_policies}
    toolset.runs_jobs = "background" in carried
    for extension in left_out(extensions):
        for name, tool in product(extension.tool_policies, toolset.tools):
            if name not in carried and getattr(tool.policy, name):
                raise refused(f"`{name}` of the tool {tool.spec.name}", extension)
    return toolset

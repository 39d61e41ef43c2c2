"""The parts of a server that its settings decide. `serve` makes them in the order of the two tables here, and ends with
the first that cannot be made; `doctor` tries each.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from app.api.identity.stored import StoredTokens
from app.api.identity.way import Authenticate
from app.api.resolve import Allowances
from app.config import Settings
from app.domain.plans import Plan, Plans
from app.engine.hooks import Hooks
from app.engine.upkeep.webhooks import Receiver
from app.llm.models.catalog import Models
from app.setup.identity import allowed_origins, open_ways
from app.setup.models import check_chosen, default_among, open_models, served_model
from app.setup.plans import read_plans
from app.setup.policies import allowances, tool_settings, webhook_receiver
from app.storage.database import Database
from app.storage.documents import Documents
from app.storage.tokens import Tokens
from app.storage.turns import ToolResults
from app.tools.assembly import open_toolset
from app.tools.library.documents import document_tools
from app.tools.library.results import result_tools
from app.tools.outputs import Outputs
from app.tools.toolset import Toolset


@dataclass(frozen=True, slots=True)
class Given:
    """What an embedding program gives: in place of settings, or beside them."""

    models: Models | None = None
    toolset: Toolset | None = None
    outputs: Outputs | None = None
    authenticate: Authenticate | None = None
    plan_of: Callable[[str], Plan | str | None] | None = None
    hooks: Sequence[Hooks] = ()


class Parts:
    """Each step sets the attribute of its name, or raises ConfigError. What a part opens is closed with `stack`."""

    receiver: Receiver | None
    allowed: Allowances
    plans: Plans
    model: str
    origins: frozenset[str]
    database: Database
    stored: StoredTokens
    ways: Sequence[Authenticate]
    models: Models
    toolset: Toolset

    def __init__(self, settings: Settings, given: Given, stack: AsyncExitStack, *, connect_mcp: bool = True) -> None:
        self.settings = settings
        self.given = given
        self._stack = stack
        self._connect_mcp = connect_mcp

    async def make_receiver(self) -> None:
        self.receiver = webhook_receiver(self.settings)

    async def make_allowed(self) -> None:
        self.allowed = allowances(self.settings)

    async def make_plans(self) -> None:
        self.plans = read_plans(self.settings, self.given.plan_of)

    async def choose_model(self) -> None:
        models = self.given.models
        self.model = served_model(self.settings) if models is None else default_among(models, self.settings.model)

    async def find_origins(self) -> None:
        self.origins = allowed_origins(self.settings)

    async def open_ways(self) -> None:
        tokens = Tokens(self.database, self.settings.cell)
        self.stored = StoredTokens(tokens, self.settings.cell)
        self.ways = await self._stack.enter_async_context(
            open_ways(self.settings, tokens, self.stored, self.given.authenticate)
        )

    async def open_models(self) -> None:
        models = self.given.models
        if models is None:
            models = await self._stack.enter_async_context(open_models(self.settings))
        check_chosen(models, self.settings)
        self.models = models

    async def open_toolset(self) -> None:
        if self.given.toolset is not None:
            self.toolset = self.given.toolset
            return
        results = result_tools(ToolResults(self.database), self.settings.max_result_chars)
        own = document_tools(Documents(self.database)) + results
        self.toolset = await self._stack.enter_async_context(
            open_toolset(own, tool_settings(self.settings), self.given.outputs, connect_mcp=self._connect_mcp)
        )


Step = Callable[[Parts], Awaitable[None]]

# Before the database is touched, so that a wrong setting makes none.
FROM_SETTINGS: Mapping[str, Step] = {
    "webhook": Parts.make_receiver,
    "allowances": Parts.make_allowed,
    "plans": Parts.make_plans,
    "origins": Parts.find_origins,
    "model": Parts.choose_model,
}
# With the migrated database in `Parts.database`.
WITH_DATABASE: Mapping[str, Step] = {
    "access": Parts.open_ways,
    "models": Parts.open_models,
    "tools": Parts.open_toolset,
}

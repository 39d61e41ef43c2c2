"""The limits in a request: the operator's settings are the defaults, and for budgets also the maximums."""

from datetime import UTC, datetime
from typing import Any

import pytest

from turnstream.api.resolve import Defaults, Resolver
from turnstream.api.schemas.requests import ChatSettings, TurnOptions
from turnstream.domain.chats import Chat
from turnstream.domain.errors import RequestRefused
from turnstream.domain.rounds import Prices
from turnstream.domain.turns import Limits, TurnRequest
from turnstream.kit.ids import new_id
from turnstream.llm.models.catalog import Model, Models, ProviderModels
from turnstream.scripted import ScriptedProvider
from turnstream.tools.toolset import Toolset

NOW = datetime.now(UTC)
PRICED = Model("priced", prices=Prices(1.0, 2.0), fallbacks=("spare",))
SPARE, FREE = Model("spare", prices=Prices(3.0, 4.0)), Model("free")
MODELS = Models([ProviderModels(ScriptedProvider([]), [PRICED, SPARE, FREE])])
CEILINGS: dict[str, Any] = {
    "hard_max_rounds": 9,
    "max_calls": 20,
    "budget_tokens": 1000,
    "budget_cost": 0.5,
    "budget_seconds": 60.0,
}


def resolver(**limits: Any) -> Resolver:
    return Resolver(MODELS, Toolset([]), Defaults("priced", None, Limits(**limits)))


def resolved(resolver: Resolver, chat: dict[str, Any] | None = None, **limits: Any) -> Limits:
    of_chat = Chat(new_id(), "ada", None, None, {"limits": chat} if chat else {}, NOW, NOW)
    return resolver.resolve(TurnOptions.model_validate({"limits": limits}), of_chat, None).limits


@pytest.mark.parametrize("name", [*CEILINGS, "max_rounds"])
def test_a_turn_may_ask_for_less_than_the_operators_limit_and_not_for_more(name: str) -> None:
    most = CEILINGS.get(name, CEILINGS["hard_max_rounds"])
    here = resolver(**CEILINGS)
    less: Any = most / 2 if isinstance(most, float) else 1
    for amount in (most, less):
        assert getattr(resolved(here, **{name: amount}), name) == amount
    with pytest.raises(RequestRefused) as refused:
        resolved(here, **{name: most + 1})
    assert refused.value.field == f"limits.{name}"
    assert refused.value.detail.startswith(f"`limits.{name}` must be at most {most:,}")
    with pytest.raises(RequestRefused) as refused:
        here.changed_settings({}, ChatSettings.model_validate({"limits": {name: most + 1}}))
    assert refused.value.field == f"settings.limits.{name}"


def test_without_a_limit_of_the_operators_a_turn_may_ask_for_any() -> None:
    asked: dict[str, Any] = {"hard_max_rounds": 900, "max_calls": 7, "budget_tokens": 10**9, "budget_seconds": 1e6}
    limits = resolved(resolver(), **asked)
    assert {name: getattr(limits, name) for name in asked} == asked


def test_the_operators_limits_hold_for_turns_that_ask_for_none_and_for_older_ones() -> None:
    here = resolver(**CEILINGS)
    assert {name: getattr(resolved(here), name) for name in CEILINGS} == CEILINGS
    assert resolved(here, {"budget_tokens": 5000}).budget_tokens == 1000, "a setting from before the limit"
    assert here.again(TurnOptions(), TurnRequest("priced")).limits.budget_cost == 0.5


def test_a_budget_of_cost_has_the_prices_of_the_models_that_may_answer() -> None:
    assert resolved(resolver(), budget_cost=1).prices == {"priced": PRICED.prices, "spare": SPARE.prices}
    assert resolved(resolver()).prices == {}


def test_a_budget_of_cost_for_a_model_without_prices_is_refused_unless_it_is_the_operators() -> None:
    options = TurnOptions.model_validate({"model": "free", "limits": {"budget_cost": 0.1}})
    with pytest.raises(RequestRefused, match="model free has no prices here") as refused:
        resolver().resolve(options, Chat(new_id(), "ada", None, None, {}, NOW, NOW), None)
    assert refused.value.field == "limits.budget_cost"
    plain = TurnOptions.model_validate({"model": "free"})
    request = resolver(budget_cost=0.5).resolve(plain, Chat(new_id(), "ada", None, None, {}, NOW, NOW), None)
    assert (request.limits.budget_cost, request.limits.prices) == (0.5, {})

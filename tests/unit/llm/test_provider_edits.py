"""Compaction by the provider: the edits that a request asks for, and the requests that send the provider's summary
back.
"""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.legal.anthropic import message_problems
from tests.support.model_apis import providers_of
from tests.support.model_requests import REQUEST, assistant, call, rendered, result, text, thinking, user
from turnstream.api.resolve import Defaults, Resolver
from turnstream.api.schemas.requests import LimitsIn, TurnOptions
from turnstream.domain.blocks import Block
from turnstream.domain.rounds import Prices, Round
from turnstream.domain.steps import CallModel, Finish, next_step
from turnstream.domain.turns import Limits, Turn, TurnRequest
from turnstream.extensions.demo.provider import DemoProvider
from turnstream.libraries.providers.anthropic.render import betas_of, render, render_count
from turnstream.llm.conversation.messages import build_messages
from turnstream.llm.models.catalog import Model, Models, ProviderModels
from turnstream.llm.provider import Message, ModelRequest, ProviderCompaction
from turnstream.tools.toolset import Toolset

BOTH = ("context_editing", "compaction")
COMPACTED_THERE = Block(0, 1, 1, "compaction", "In short.", '{"type":"compaction","content":null,"signature":"s"}')


def asked(*edits: str, at: int | None = None, **fields: Any) -> ModelRequest:
    messages = (Message("user", (text("Hello"),)),)
    return ModelRequest("claude-opus-5-5", messages, compaction=ProviderCompaction(edits, at), **fields)


def edits_of(request: ModelRequest) -> Any:
    return json.loads(render(request)).get("context_management", {}).get("edits")


def test_edits_are_asked_for_with_their_betas() -> None:
    request = asked(*BOTH, at=160_000)
    clear, compact = edits_of(request)
    assert clear["type"] == "clear_tool_uses_20250919"
    assert clear["trigger"] == {"type": "input_tokens", "value": 120_000}
    assert clear["clear_at_least"] == {"type": "input_tokens", "value": 20_000}
    assert compact == {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 160_000}}
    assert betas_of(request) == ["context-management-2025-06-27", "compact-2026-01-12"]
    assert betas_of(asked(*BOTH, params={"betas": ["b", "compact-2026-01-12"]})) == [
        "b",
        "compact-2026-01-12",
        "context-management-2025-06-27",
    ]


def test_without_a_window_the_provider_knows_when() -> None:
    assert edits_of(asked(*BOTH)) == [{"type": "clear_tool_uses_20250919"}, {"type": "compact_20260112"}]
    assert edits_of(asked("context_editing")) == [{"type": "clear_tool_uses_20250919"}]
    assert edits_of(asked("compaction", at=6_000))[0]["trigger"]["value"] == 50_000


def test_no_edit_is_requested_that_the_model_does_not_support() -> None:
    assert edits_of(asked()) is None
    assert betas_of(asked()) == []
    assert edits_of(replace(asked(), compaction=None)) is None


def test_a_token_count_includes_the_edits() -> None:
    body = json.loads(render_count(asked(*BOTH, params={"context_management": {"edits": []}})))
    assert body.keys() == {"context_management", "messages", "model"}
    assert body["context_management"] == {"edits": []}, "what the turn itself says goes before"


def request_with(*edits: str, model: str = REQUEST.model) -> TurnRequest:
    limits = Limits(compaction="provider" if edits else "own", provider_edits=edits)
    return replace(REQUEST, model=model, limits=limits)


def path_to(request: TurnRequest) -> list[Turn]:
    before = assistant([thinking("Hm."), COMPACTED_THERE, text("Yes.")], request=request_with(*BOTH))
    return [user(text("Hello")), before, user(text("And?")), assistant(request=request)]


def kinds(path: list[Turn], model: str | None = None) -> list[str]:
    return [block.type for message in build_messages(path, model) for block in message.blocks]


def test_compactions_and_thoughts_are_sent_back_if_the_provider_continues_with_them() -> None:
    assert kinds(path_to(request_with(*BOTH))) == ["text", "thinking", "compaction", "text", "text"]
    assert kinds(path_to(request_with("context_editing"))) == ["text", "thinking", "compaction", "text", "text"]


def test_thoughts_are_not_sent_back_if_cleared_content_is_sent_again() -> None:
    assert kinds(path_to(request_with())) == ["text", "compaction", "text", "text"]
    assert kinds(path_to(request_with("compaction"))) == ["text", "compaction", "text", "text"]


@pytest.mark.parametrize(
    ("management", "holds"),
    [
        ({"edits": [{"type": "clear_tool_uses_20250919"}]}, True),
        ({"edits": [{"type": "clear_thinking_20251015"}, {"type": "clear_tool_uses_20250919"}, 7]}, True),
        ({"edits": [{"type": "compact_20260112"}]}, False),
        ({}, False),
        (None, True),
    ],
)
def test_a_turns_own_edits_count_in_the_place_of_those_of_its_settings(management: Any, holds: bool) -> None:
    now = replace(request_with(*BOTH), params={"context_management": management})
    assert ("thinking" in kinds(path_to(now))) == holds


def test_another_model_is_sent_the_history_without_them() -> None:
    assert kinds(path_to(request_with(*BOTH)), "claude-haiku-4-5") == ["text", "text", "text"]
    path = path_to(request_with(*BOTH))
    by_fallback = replace(path[1], rounds=tuple(replace(round, model="claude-haiku-4-5") for round in path[1].rounds))
    assert "compaction" not in kinds([path[0], by_fallback, *path[2:]])


def test_a_compaction_in_a_request_needs_its_beta() -> None:
    request = ModelRequest(REQUEST.model, build_messages(path_to(request_with())))
    assert betas_of(request) == ["compact-2026-01-12"]
    own = {"edits": [{"type": "clear_tool_uses_20250919"}, {"type": "new"}, 7]}
    assert betas_of(asked(params={"context_management": own})) == ["context-management-2025-06-27"]


def test_enabled_thinking_stays_behind_a_compaction() -> None:
    """A round with calls must begin with a thought, but a compaction may precede the thought."""
    turn = assistant([COMPACTED_THERE, thinking("Hm."), call("a")], stops=["tool_use"], request=request_with(*BOTH))
    turn = replace(turn, blocks=(*turn.blocks, result("a", index=3)))
    params = {"thinking": {"type": "enabled", "budget_tokens": 2_000}}
    request = ModelRequest(REQUEST.model, build_messages([user(text("Hello")), turn]), params=params)
    assert json.loads(render(request))["thinking"] == params["thinking"]


def test_a_reply_with_only_a_compaction_is_continued() -> None:
    turn = assistant([COMPACTED_THERE], stops=["compaction"], request=request_with(*BOTH))
    path = [user(text("Hello")), turn]
    assert next_step(turn, path[:1]) == CallModel(2)
    assert kinds(path) == ["text", "compaction"]
    assert message_problems(rendered(build_messages(path)), paused=True) == []
    assert message_problems(rendered(build_messages(path, "claude-haiku-4-5"))) == []
    answered = replace(
        turn,
        rounds=(*turn.rounds, Round(2, 1, stop_reason="end_turn", sealed_by=1)),
        blocks=(*turn.blocks, text("So.", index=1, round=2)),
    )
    assert next_step(answered, path[:1]) == Finish("end_turn")
    assert kinds([path[0], answered, user(text("And?")), assistant(request=request_with(*BOTH))]) == [
        "text",
        "compaction",
        "text",
        "text",
    ]


# --- edits that a turn asks for ---------------------------------------------------------------------------------------

MODELS = Models(
    [
        ProviderModels(
            DemoProvider(), [Model("offers", can=frozenset(BOTH)), Model("clears", can=frozenset(BOTH[:1])), "unknown"]
        )
    ]
)


@pytest.mark.parametrize(("model", "edits"), [("offers", BOTH), ("clears", ("context_editing",)), ("unknown", ())])
def test_only_abilities_in_the_registry_are_left_to_the_provider(model: str, edits: tuple[str, ...]) -> None:
    wanted = TurnOptions(model=model, limits=LimitsIn(compaction="provider"))
    resolver = Resolver(MODELS, Toolset([]), Defaults("offers", None, Limits()))
    request = resolver.again(wanted, TurnRequest("offers"))
    assert request.limits.provider_edits == edits
    back = resolver.again(TurnOptions(limits=LimitsIn(compaction="own")), request)
    assert back.limits.provider_edits == ()


def test_the_registry_names_it_for_models_of_anthropic() -> None:
    (anthropic,) = providers_of(None, {"ANTHROPIC_API_KEY": "a"})
    can = {model.id: model.can or frozenset() for model in anthropic.models}
    assert {edit for edit in BOTH if edit in can["claude-sonnet-5-5"]} == {*BOTH}
    assert {edit for edit in BOTH if edit in can["claude-haiku-4-5"]} == {"context_editing"}


def test_summaries_of_the_provider_have_their_price() -> None:
    iterations = [{"type": "compaction", "input_tokens": 300_000, "output_tokens": 100_000}, {"type": "message"}]
    usage = {"input_tokens": 200_000, "output_tokens": 100_000, "iterations": iterations}
    assert Prices(2.0, 10.0).cost_of(usage) == pytest.approx(0.5 * 2 + 0.2 * 10)

"""The catalog: names of models, their providers and costs."""

import pytest

from turnstream.domain.blocks import Block
from turnstream.domain.errors import ConfigError, PermanentError, RequestRefused
from turnstream.domain.rounds import Prices
from turnstream.domain.turns import Preset
from turnstream.llm.conversation.attachments import LEFT_OUT
from turnstream.llm.models.catalog import Model, Models, ProviderModels
from turnstream.llm.provider import Message, ModelRequest
from turnstream.scripted import ScriptedProvider, message_of, text

LISTED = Model(
    "big", aliases=("best",), fallbacks=("small",), prices=Prices(3.0, 15.0, cache_read=0.3, cache_write=3.75)
)


def models() -> tuple[Models, ScriptedProvider, ScriptedProvider]:
    one, other = (ScriptedProvider(lambda _: message_of(text("Hi"))) for _ in range(2))
    offers = [
        ProviderModels(one, [LISTED], ["big", "x-"]),
        ProviderModels(other, ["small", Model("renamed", upstream="y-1")], ["y-"]),
    ]
    return Models(offers), one, other


def test_a_model_is_found_by_its_id_an_alias_or_a_prefix() -> None:
    found, one, other = models()
    assert found.check("big") is LISTED
    assert found.check("best") is LISTED
    assert found.check("x-2") == Model("x-2")
    assert found.provider_for("best") is one
    assert found.provider_for("y-2") is other
    assert found.provider_name("best") == one.name
    assert found.check("small").can is None


def test_a_name_that_only_a_prefix_accepts_is_no_label_of_metrics() -> None:
    found, _, _ = models()
    assert [found.label(name) for name in ("big", "best", "small", "x-1", "nobody's")] == [
        "big",
        "big",
        "small",
        "other",
        "other",
    ]


def test_a_listed_model_goes_before_a_prefix() -> None:
    one, other = ScriptedProvider([]), ScriptedProvider([])
    found = Models([ProviderModels(one, [], ["big"]), ProviderModels(other, ["big-2"])])
    assert found.provider_for("big-2") is other
    assert found.provider_for("big-3") is one


def test_an_unknown_model_is_refused_with_those_there_are() -> None:
    found, *_ = models()
    with pytest.raises(
        RequestRefused, match="`model` must be one of big, small, renamed: there is no model 'huge' here"
    ) as refused:
        found.check("huge")
    assert refused.value.field == "model"
    with pytest.raises(PermanentError, match="model_not_available"):
        found.provider_for("huge")
    assert found.provider_name("huge") is None
    assert (found.fallbacks("huge"), found.cost("huge", {}), found.longest_reply("huge")) == ((), None, None)


async def test_a_model_may_have_another_name_with_its_provider() -> None:
    found, _, other = models()
    renamed = found.provider_for("renamed")
    assert renamed.name == other.name
    async for _ in renamed.stream(ModelRequest("renamed", ())):
        pass
    assert other.requests[0].model == "y-1"


async def test_a_model_is_not_sent_files_that_it_cannot_read() -> None:
    provider = ScriptedProvider(lambda _: message_of(text("Hi")))
    found = Models([ProviderModels(provider, [Model("blind", can=frozenset({"tools", "documents"})), Model("seeing")])])
    picture, paper = Block(0, 0, 0, "image", data='{"type":"image"}'), Block(1, 0, 0, "document", data="{}")
    messages = (Message("user", (picture, paper)),)
    for model in ("blind", "seeing"):
        async for _ in found.provider_for(model).stream(ModelRequest(model, messages)):
            pass
    left_out = Block(0, 0, 0, "text", LEFT_OUT.format(type="image"))
    assert [request.messages[0].blocks for request in provider.requests] == [(left_out, paper), (picture, paper)]


def test_every_model_is_listed_with_its_provider() -> None:
    found, *_ = models()
    assert {id: provider for id, (_, provider) in found.listed().items()} == dict.fromkeys(
        ("big", "small", "renamed"), "scripted"
    )


def test_a_model_with_unknown_abilities_is_refused_nothing() -> None:
    assert Model("m").supports("images")
    assert Model("m", can=frozenset({"images"})).supports("images")
    assert not Model("m", can=frozenset()).supports("images")


def test_a_cost_has_no_noise_of_binary_fractions() -> None:
    assert Prices(0.1, 0.2).cost_of({"input_tokens": 1_000_000, "output_tokens": 1_000_000}) == 0.3
    assert Prices(3, 15).cost_of({"input_tokens": 7, "output_tokens": 11, "cache_read_input_tokens": 3}) == 0.000195


def test_a_cost_counts_cached_tokens_at_their_own_price() -> None:
    found, *_ = models()
    usage = {
        "input_tokens": 1_000_000,
        "output_tokens": 100_000,
        "cache_read_input_tokens": 1_000_000,
        "cache_creation_input_tokens": None,
    }
    assert found.cost("big", usage) == pytest.approx(3 + 1.5 + 0.3)
    assert found.fallbacks("best") == ("small",)
    assert found.cost("small", usage) is None
    assert Prices(2, 4).cost_of({"cache_read_input_tokens": 500_000, "cache_creation_input_tokens": 500_000}) == 2


def test_an_agent_is_another_name_of_its_model() -> None:
    provider = ScriptedProvider([message_of(text("Hi."))] * 2)
    first = ProviderModels(ScriptedProvider([]), ["other"])
    known = Models([first, ProviderModels(provider, [Model("big", upstream="big-1", aliases=("best",))])])
    found = known.with_presets({"lead": Preset("Leads.", "Lead.", "best"), "scout": Preset("", "")}, "other")
    assert found.preset("lead") == Preset("Leads.", "Lead.", "big")
    assert [found.preset(name) for name in ("big", "nothing")] == [None, None]
    assert [found.behind(name).id for name in ("lead", "scout", "best", "other")] == ["big", "other", "big", "other"]
    assert (found.check("lead").upstream, found.check("lead").aliases) == ("big-1", ())
    assert list(found.listed()) == ["other", "scout", "big", "lead"]
    assert found.provider_name("lead") == found.provider_name("big")
    assert known.with_presets({}, "other") is known


def test_the_name_of_an_agent_is_free_and_its_model_is_there() -> None:
    found, *_ = models()
    for taken in ("big", "best"):
        with pytest.raises(ConfigError, match=f"The agent {taken} must have another name"):
            found.with_presets({taken: Preset("", "")}, "big")
    with pytest.raises(ConfigError, match=r"The agent lead: `model`: there is no model 'none' here\."):
        found.with_presets({"lead": Preset("", "", "none")}, "big")

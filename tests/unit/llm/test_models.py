import pytest

from app.domain.errors import PermanentError, RequestRefused
from app.llm.models import CLAUDE, CLAUDE_MODELS, Models, Offer
from app.llm.scripted import ScriptedProvider

CLAUDES = ScriptedProvider([])
DEMO = ScriptedProvider([])
MODELS = Models([Offer(CLAUDES, ("claude-opus-5-5",), (CLAUDE,)), Offer(DEMO, ("demo",))])


def test_models_are_listed_with_their_providers() -> None:
    assert MODELS.listed() == {"claude-opus-5-5": "scripted", "demo": "scripted"}
    assert all(name.startswith(CLAUDE) for name in CLAUDE_MODELS)


@pytest.mark.parametrize(
    ("model", "provider"), [("claude-opus-5-5", CLAUDES), ("claude-of-tomorrow", CLAUDES), ("demo", DEMO)]
)
def test_a_model_is_served_by_whoever_lists_it_or_takes_its_prefix(model: str, provider: ScriptedProvider) -> None:
    MODELS.check(model)
    assert MODELS.provider_for(model) is provider


def test_a_model_that_nobody_serves_is_refused_and_cannot_be_called() -> None:
    with pytest.raises(RequestRefused, match=r"no model 'gpt'.*demo") as refused:
        MODELS.check("gpt")
    assert refused.value.field == "model"
    with pytest.raises(PermanentError, match="gpt"):
        MODELS.provider_for("gpt")

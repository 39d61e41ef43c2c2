"""Which models there are, and whose they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.domain.errors import PermanentError, RequestRefused
from app.llm.provider import Provider

CLAUDE = "claude-"
CLAUDE_MODELS = tuple(
    CLAUDE + name
    for name in (
        "fable-5-2",
        "mythos-5-2",
        "opus-5-5",
        "sonnet-5-5",
        "haiku-5-5",
        "fable-5-1",
        "mythos-5-1",
        "opus-5",
        "sonnet-5",
        "fable-5",
        "mythos-5",
        "opus-4-8",
        "opus-4-7",
        "opus-4-6",
        "sonnet-4-6",
        "opus-4-5",
        "sonnet-4-5",
        "haiku-4-5",
    )
)


@dataclass(frozen=True, slots=True)
class Offer:
    """A provider, the model ids it lists, and the prefixes of further ids that it takes unlisted."""

    provider: Provider
    models: Sequence[str]
    prefixes: Sequence[str] = ()

    def serves(self, model: str) -> bool:
        return model in self.models or any(model.startswith(prefix) for prefix in self.prefixes)


class Models:
    def __init__(self, offers: Sequence[Offer]) -> None:
        self._offers = offers

    def listed(self) -> Mapping[str, str]:
        """Model id → provider name."""
        return {model: offer.provider.name for offer in self._offers for model in offer.models}

    def check(self, model: str) -> None:
        """Raises RequestRefused for a model that nobody here serves."""
        if not any(offer.serves(model) for offer in self._offers):
            have = ", ".join(self.listed())
            raise RequestRefused(f"there is no model {model!r} here; there are: {have}", field="model")

    def provider_for(self, model: str) -> Provider:
        """Raises PermanentError: a turn may be older than the present configuration."""
        for offer in self._offers:
            if offer.serves(model):
                return offer.provider
        raise PermanentError("model_not_available", f"no provider for the model {model!r} is configured here")

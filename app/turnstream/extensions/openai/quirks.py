"""The differences between OpenAI and compatible servers that cannot be recognised from answers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

_OF_OPENAI = frozenset(
    {
        "logit_bias",
        "metadata",
        "prompt_cache_key",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "user",
        "verbosity",
    }
)
_OF_OPEN_MODELS = frozenset({"min_p", "repetition_penalty", "top_k"})


@dataclass(frozen=True, slots=True)
class Quirks:
    """The form of requests to a server. The default is the form of OpenAI.

    `max_tokens` is the name of the member for the length of an answer, `thinking` for the reasoning effort (None: not
    sent), and `seed` for a seed. `params` are the parameters that this server has and some other servers lack
    (turnstream.extensions.openai.parameters); `more_params` are parameters that the operator adds. With
    `thoughts_go_back` the model's own thoughts are sent back. A whole call id must match `call_ids`. `after_tools` is
    an assistant text between results and a user message, for servers that refuse a user message directly behind a tool
    message. `unsupported` members are never sent, and `extra` members are always sent.
    """

    max_tokens: str = "max_completion_tokens"
    thinking: Literal["reasoning_effort", "reasoning", "thinking"] | None = "reasoning_effort"
    thoughts_go_back: bool = False
    call_ids: re.Pattern[str] = re.compile(r".{1,40}", re.DOTALL)
    after_tools: str | None = None
    unsupported: frozenset[str] = frozenset()
    extra: Mapping[str, Any] = field(default_factory=dict)
    seed: str = "seed"
    params: frozenset[str] = _OF_OPENAI
    more_params: frozenset[str] = frozenset()


OPENAI = Quirks()
# Quirks by their name in the file of models; "compatible" works for most other servers.
QUIRKS: Mapping[str, Quirks] = MappingProxyType(
    {
        "openai": OPENAI,
        "compatible": Quirks(
            max_tokens="max_tokens", thinking=None, params=_OF_OPENAI | _OF_OPEN_MODELS | {"chat_template_kwargs"}
        ),
        "deepseek": Quirks(max_tokens="max_tokens", thinking="thinking", thoughts_go_back=True, params=frozenset()),
        "mistral": Quirks(
            max_tokens="max_tokens",
            thinking=None,
            call_ids=re.compile(r"[a-zA-Z0-9]{9}"),
            after_tools="I have the results.",
            unsupported=frozenset({"stream_options"}),
            seed="random_seed",
            params=frozenset(),
        ),
        "openrouter": Quirks(
            max_tokens="max_tokens",
            thinking="reasoning",
            thoughts_go_back=True,
            params=_OF_OPENAI | _OF_OPEN_MODELS | {"provider", "reasoning"},
        ),
    }
)


def quirks_of(name: str | None, more_params: Sequence[str] = ()) -> Quirks:
    """Returns the quirks of a provider in the file of models, by default OpenAI's."""
    return replace(QUIRKS[name or "openai"], more_params=frozenset(more_params))

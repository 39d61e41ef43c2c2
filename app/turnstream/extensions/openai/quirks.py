"""Differences between compatible servers and OpenAI that answers do not reveal."""

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
    """The form of a request. The default is OpenAI's.

    `max_tokens` is the member for the length of an answer, `thinking` the member for the reasoning effort (None: not
    sent), and `seed` the member for a seed. `params` are parameters of this server that others lack
    (turnstream.extensions.openai.parameters), `more_params` are parameters of the operator. With `thoughts_go_back` the
    model's own thoughts are sent back. `call_ids` must match a whole call id. `after_tools` is an assistant text
    between results and a user message, for servers that refuse a user message directly behind a tool message.
    `unsupported` members are never sent, `extra` members always.
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
# By the name in the file of models; "compatible" works for most other servers.
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

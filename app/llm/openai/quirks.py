"""In what the servers that speak OpenAI's language differ, where an answer cannot tell it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Quirks:
    """What a request must look like. The default is OpenAI itself.

    `max_tokens` is the member that limits an answer, `thinking` the one that says how hard to think (None: neither is
    said). With `thoughts_go_back` the model is shown its own earlier thoughts. `call_ids` is what an id of a call must
    match as a whole. `after_tools` is what the assistant says between results and the user's words, where a user
    may not speak right behind a tool. `unsupported` are members never sent, `extra` those always sent.
    """

    max_tokens: str = "max_completion_tokens"
    thinking: Literal["reasoning_effort", "reasoning", "thinking"] | None = "reasoning_effort"
    thoughts_go_back: bool = False
    call_ids: re.Pattern[str] = re.compile(r".{1,40}", re.DOTALL)
    after_tools: str | None = None
    unsupported: frozenset[str] = frozenset()
    extra: Mapping[str, Any] = field(default_factory=dict)


OPENAI = Quirks()
# Names for a configuration; what is not here is well served by "compatible".
QUIRKS: Mapping[str, Quirks] = MappingProxyType(
    {
        "openai": OPENAI,
        "compatible": Quirks(max_tokens="max_tokens", thinking=None),
        "deepseek": Quirks(max_tokens="max_tokens", thinking="thinking", thoughts_go_back=True),
        "mistral": Quirks(
            max_tokens="max_tokens",
            thinking=None,
            call_ids=re.compile(r"[a-zA-Z0-9]{9}"),
            after_tools="I have the results.",
            unsupported=frozenset({"stream_options"}),
        ),
        "openrouter": Quirks(max_tokens="max_tokens", thinking="reasoning", thoughts_go_back=True),
    }
)

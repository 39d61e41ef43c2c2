"""The parameters of turns for models behind OpenAI's two APIs. `Quirks` defines which of these parameters a compatible
server accepts.
"""

import re
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from turnstream.extensions.openai.quirks import QUIRKS, Quirks
from turnstream.llm.parameters import (
    MAX_TOKENS,
    OUTPUT_CONFIG,
    OUTPUT_FORMAT,
    STOP_SEQUENCES,
    TEMPERATURE,
    THINKING,
    TOOL_CHOICE,
    TOP_K,
    TOP_P,
    JsonObject,
    Parameter,
    Texts,
)

# Models that do not reason, and that refuse requests for encrypted reasoning.
THOUGHTLESS = re.compile(r"(^|[/.:])(chatgpt|gpt-3|gpt-4)")
# OpenAI's first reasoning models have no sampling parameters. From gpt-5.1 on, the effort decides whether sampling
# parameters are allowed, and OpenAI checks this.
_UNSAMPLED = re.compile(r"^(o\d|gpt-5(?!\.|-chat))")
_NO_THOUGHTS, _NO_SAMPLING = "it does not reason", "it is a reasoning model without sampling parameters"

_Penalty = Annotated[float, Field(ge=-2, le=2)]
_Bias = Annotated[float, Field(ge=-100, le=100)]
_Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Reasoning(BaseModel):
    """The members of `reasoning` that do not change the price of a token, neither at OpenAI nor at a gateway."""

    model_config = ConfigDict(extra="forbid", strict=True)

    effort: _Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    enabled: bool | None = None
    exclude: bool | None = None


def _sampling(parameter: Parameter) -> Parameter:
    return replace(parameter, refused_by=_UNSAMPLED, why=_NO_SAMPLING)


def _reasoning(parameter: Parameter) -> Parameter:
    return replace(parameter, refused_by=THOUGHTLESS, why=_NO_THOUGHTS)


_BOTH = (
    MAX_TOKENS,
    TOOL_CHOICE,
    OUTPUT_CONFIG,
    _reasoning(THINKING),
    _reasoning(Parameter("reasoning_effort", _Effort, "effort of the model, in OpenAI's words")),
    _reasoning(Parameter("reasoning", Reasoning, "reasoning of the model, in OpenAI's words")),
    _sampling(TEMPERATURE),
    _sampling(TOP_P),
    Parameter("parallel_tool_calls", bool, "whether one reply may hold several calls"),
    Parameter("verbosity", Literal["low", "medium", "high"], "length of the answer"),
    Parameter("prompt_cache_key", str, "key of requests that share a cache"),
    Parameter(
        "metadata", dict[str, str], "notes that the provider keeps with the request, such as `user_id`", guarded=True
    ),
    Parameter("provider", JsonObject, "choice among the providers of a gateway", guarded=True),
    Parameter("safety_identifier", str, "the user, by whom the provider recognises abuse", guarded=True),
    Parameter(
        "service_tier",
        Literal["auto", "default", "fast", "flex", "priority", "scale", "ultrafast"],
        "capacity that is used",
        guarded=True,
    ),
    Parameter("user", str, "older form of `safety_identifier`", guarded=True),
)
CHAT = (
    *_BOTH,
    STOP_SEQUENCES,
    Parameter("response_format", JsonObject, "format of the answer, in OpenAI's words"),
    Parameter("seed", int, "number that makes sampling repeatable"),
    _sampling(Parameter("presence_penalty", _Penalty, "avoidance of what was mentioned")),
    _sampling(Parameter("frequency_penalty", _Penalty, "avoidance of what was repeated")),
    _sampling(Parameter("logit_bias", dict[str, _Bias], "change of probability, by the number of the token")),
    TOP_K,
    Parameter("min_p", Annotated[float, Field(ge=0, le=1)], "least probability, as a share of the highest one"),
    Parameter("repetition_penalty", Annotated[float, Field(gt=0, le=10)], "avoidance of repetition; 1 is none"),
    Parameter("chat_template_kwargs", JsonObject, "arguments of the model's chat template"),
)
RESPONSES = (
    *_BOTH,
    Parameter("include", Texts, "further data of the answer"),
    Parameter("max_tool_calls", Annotated[int, Field(ge=1)], "limit of calls of the provider's own tools"),
    Parameter("truncation", Literal["auto", "disabled"], "whether the provider drops what is too long"),
    Parameter("prompt_cache_retention", Literal["in_memory", "24h"], "time that the cache is kept", guarded=True),
    Parameter("store", bool, "whether the provider stores the answer", guarded=True),
)

# Parameters that depend on `Quirks.params`.
_BY_QUIRK = frozenset().union(*(quirks.params for quirks in QUIRKS.values()))
# Members of a request that only the adapter sets: an operator cannot add parameters with these names.
OWN_MEMBERS = frozenset(
    {
        "background",
        "conversation",
        "functions",
        "input",
        "instructions",
        "max_completion_tokens",
        "max_output_tokens",
        "messages",
        "model",
        "n",
        "previous_response_id",
        "prompt",
        "stop",
        "stream",
        "stream_options",
        "text",
        "tools",
    }
)
# Parameters of a server that accepts a reasoning effort.
_OF_THOUGHTS = frozenset({"reasoning", "reasoning_effort", "thinking"})


def chat_parameters(quirks: Quirks) -> tuple[Parameter, ...]:
    """Returns the parameters that a server with these quirks accepts."""
    found = {parameter.name: parameter for parameter in CHAT}
    left_out = _BY_QUIRK - quirks.params | ({"thinking"} if quirks.thinking is None else set())
    return _of_server(found, left_out, quirks, with_effort=quirks.thinking in {"reasoning", "reasoning_effort"})


def responses_parameters(quirks: Quirks) -> tuple[Parameter, ...]:
    found = {parameter.name: parameter for parameter in RESPONSES}
    left_out = _BY_QUIRK - quirks.params - _OF_THOUGHTS | (_OF_THOUGHTS if quirks.thinking is None else set())
    return _of_server(found, left_out, quirks, with_effort=quirks.thinking is not None)


def _of_server(
    table: Mapping[str, Parameter], left_out: Set[str], quirks: Quirks, *, with_effort: bool
) -> tuple[Parameter, ...]:
    own = {name: Parameter(name, Any, "parameter of this server") for name in sorted(quirks.more_params)}
    output = OUTPUT_CONFIG if with_effort else OUTPUT_FORMAT
    return tuple({**own, **{n: p for n, p in table.items() if n not in left_out}, output.name: output}.values())

"""Sorts the members of a request that concern the model into three classes: members that change the answer, which the
model must support; labels, hints and telemetry, which only models that accept them receive; and the model's own
parameters.
"""

from collections.abc import Mapping, Sequence

from turnstream.api.services import Services
from turnstream.extensions.openai_api.objects import Json
from turnstream.extensions.openai_api.schemas import ChatIn, ResponseIn, StreamOptionsIn

IGNORED = "Turnstream-Ignored"  # the header that names the members without an effect

# Labels, hints, telemetry, and values that equal OpenAI's defaults. The answer is as good without them. If a member
# lists values here, any other value changes the answer.
HINTS: Mapping[str, Sequence[object] | None] = {
    "client_metadata": None,
    "frequency_penalty": (0,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "prediction": None,
    "presence_penalty": (0,),
    "prompt_cache_key": None,
    "prompt_cache_options": None,
    "prompt_cache_retention": None,
    "safety_identifier": None,
    "service_tier": ("auto", "default"),
    "temperature": (1,),
    "top_logprobs": (0,),
    "top_p": (1,),
    "user": None,
}
_NAMED = ("temperature", "top_p", "parallel_tool_calls", "verbosity")


def params_of(services: Services, model: str | None, sent: ResponseIn | ChatIn) -> tuple[Json, list[str]]:
    """Returns the parameters under the model's own names for them, and the names of ignored members."""
    resolver = services.resolver
    checked = resolver.models.check(model or resolver.defaults.model)
    given = {name: value for name in _NAMED if (value := getattr(sent, name, None)) is not None}
    given |= {name: value for name, value in (sent.model_extra or {}).items() if value is not None}
    hints = {
        name: value
        for name, value in given.items()
        if name in HINTS and ((only := HINTS[name]) is None or value in only)
    }
    params = {name: value for name, value in given.items() if name not in hints}
    taken = resolver.params.fitting(checked, hints)
    return params | taken, sorted(hints.keys() - taken.keys())


def effort_of(services: Services, model: str | None, effort: str) -> Json:
    """Returns the effort as a value of the model's parameter for efforts."""
    resolver = services.resolver
    checked = resolver.models.check(model or resolver.defaults.model)
    known = {parameter.name: parameter for parameter in resolver.params.listed(checked)}
    ours = {"effort": effort}
    if "output_config" in known and known["output_config"].accepts(ours):
        return {"output_config": ours}
    return {"reasoning_effort": effort}


def unheeded(sent: ResponseIn | ChatIn) -> list[str]:
    """Returns the names of members that have no effect for any model."""
    options: StreamOptionsIn | None = sent.stream_options
    names = ["stream_options.include_obfuscation"] if options and options.include_obfuscation else []
    if isinstance(sent, ResponseIn):
        if sent.reasoning and sent.reasoning.generate_summary is not None:
            names.append("reasoning.generate_summary")
        if "message.output_text.logprobs" in (sent.include or ()):
            names.append("include")
    return names

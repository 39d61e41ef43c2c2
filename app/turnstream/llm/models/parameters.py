"""The parameters of all APIs: those of one provider, and all of them by name."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, assert_never

from turnstream.extensions.openai.parameters import CHAT, RESPONSES, chat_parameters, responses_parameters
from turnstream.extensions.openai.quirks import Quirks
from turnstream.llm.anthropic import parameters as anthropic
from turnstream.llm.parameters import Parameter

Api = Literal["anthropic", "openai-chat", "openai-responses"]

TABLES: Mapping[Api, Sequence[Parameter]] = MappingProxyType(
    {"anthropic": anthropic.PARAMETERS, "openai-chat": CHAT, "openai-responses": RESPONSES}
)


def parameters_of(api: Api, quirks: Quirks) -> Sequence[Parameter]:
    """Returns those that a provider takes."""
    match api:
        case "anthropic":
            return anthropic.PARAMETERS
        case "openai-chat":
            return chat_parameters(quirks)
        case "openai-responses":
            return responses_parameters(quirks)
        case _:
            assert_never(api)


def guarded_names() -> frozenset[str]:
    return frozenset(parameter.name for table in TABLES.values() for parameter in table if parameter.guarded)


def schemas_by_name() -> dict[str, Any]:
    """Returns the JSON Schema of the values of each parameter, those of all APIs together, with a description that ends
    with their names.
    """
    found: dict[str, Any] = {}
    for api, table in TABLES.items():
        for parameter in table:
            schema, before = parameter.schema(), found.get(parameter.name, {})
            if "enum" in before:
                schema = {**schema, "enum": sorted({*before["enum"], *schema["enum"]})}
            note = " (the operator must allow it)" if parameter.guarded else ""
            apis = f"{before['description'].rpartition(': ')[2]}, {api}" if before else api
            found[parameter.name] = {**schema, "description": f"{parameter.description}{note}: {apis}"}
    return dict(sorted(found.items()))

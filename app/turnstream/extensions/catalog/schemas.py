"""Bodies of the calls that list models and tools."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field


class ParameterOut(BaseModel):
    name: str
    description: str
    values: Annotated[dict[str, Any], Field(description="JSON Schema of its values: type, range, choices")]


class ModelOut(BaseModel):
    id: str
    provider: str
    default: bool
    context_window: Annotated[int | None, Field(description="tokens; null where it is not known")]
    max_output: Annotated[int | None, Field(description="tokens; null where it is not known")]
    can: Annotated[
        list[str] | None, Field(description="its abilities; null where they are unknown, then nothing is refused")
    ]
    prices: Annotated[dict[str, float | None] | None, Field(description="of a million tokens")]
    currency: Annotated[str | None, Field(description="of its prices (ISO 4217); null where the operator named none")]
    aliases: list[str]
    fallbacks: Annotated[list[str], Field(description="the models that are tried when this one is unavailable")]
    params: Annotated[list[ParameterOut], Field(description="the parameters that turns can set for it on this server")]
    agent: Annotated[str | None, Field(description="what it does, for an agent of this server; null for a model")]


class ModelsOut(BaseModel):
    models: list[ModelOut]


class ToolOut(BaseModel):
    name: str
    description: str
    input_schema: dict[str, Any]
    read_only: bool
    approval: Annotated[
        Literal["never", "always", "by_input"], Field(description="whether a person must approve a call")
    ]
    background: Annotated[bool, Field(description="whether each call runs in the background")]


class ToolsOut(BaseModel):
    tools: list[ToolOut]

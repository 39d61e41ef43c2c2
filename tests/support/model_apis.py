"""The model APIs that are installed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from turnstream.config import Settings
from turnstream.extension import installed, model_apis
from turnstream.libraries.providers.registry import read_registry
from turnstream.llm.models import api
from turnstream.llm.models.api import ProviderSpec
from turnstream.llm.parameters import Parameter

EXTENSIONS: Final = list(installed().values())
APIS: Final = model_apis(Settings(_env_file=None), EXTENSIONS)
_NAMES: Final = {id(each.parameters): each.name for each in reversed(APIS)}
# The tables of parameters. Each table has the name of the first API that uses it, because APIs of clouds share the
# table of another API.
TABLES: Final[Mapping[str, Sequence[Parameter]]] = {
    each.name: each.parameters
    for each in APIS
    if each.parameters and not each.stand_in and _NAMES[id(each.parameters)] == each.name
}


def parameters_of(name: str, quirks: str | None = None) -> Sequence[Parameter]:
    return next(each for each in APIS if each.name == name).parameters_of(quirks)


def guarded_names() -> frozenset[str]:
    return api.guarded_names(APIS)


def schemas_by_name() -> dict[str, Any]:
    return api.schemas_by_name(APIS)


def providers_of(file: Path | None, environment: Mapping[str, str]) -> list[ProviderSpec]:
    """Returns the providers whose key is set, from the file of models. Leaves out the demo."""
    return [spec for spec in read_registry(file, environment, APIS) if not spec.api.stand_in]

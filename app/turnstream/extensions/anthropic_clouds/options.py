"""Defines the `options` of cloud providers. With the credentials, they form the address or the signature of a call."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from turnstream.config import read_environment
from turnstream.domain.errors import ConfigError
from turnstream.llm.models.api import ProviderSpec


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a provider. If it is not set, the environment `variables` replace it, as in the SDK. A `needed`
    option must always be set. An option that is `in_address` must be set only if `base_url` is not set.
    """

    variables: tuple[str, ...] = ()
    needed: bool = False
    in_address: bool = False


_AWS_REGION = Option(("AWS_REGION", "AWS_DEFAULT_REGION"), needed=True)
# The options of each API, by the API's name.
OPTIONS: Mapping[str, Mapping[str, Option]] = MappingProxyType(
    {
        "anthropic-aws": {
            "region": _AWS_REGION,
            "profile": Option(),
            "workspace": Option(("ANTHROPIC_AWS_WORKSPACE_ID",), needed=True),
        },
        "anthropic-bedrock": {"region": _AWS_REGION, "profile": Option()},
        "anthropic-foundry": {"resource": Option(("ANTHROPIC_FOUNDRY_RESOURCE",), in_address=True)},
        "anthropic-google-cloud": {
            "location": Option(("ANTHROPIC_GOOGLE_CLOUD_LOCATION",)),
            # The SDK can derive `project` from the credentials.
            "project": Option(("ANTHROPIC_GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_PROJECT")),
            "workspace": Option(("ANTHROPIC_GOOGLE_CLOUD_WORKSPACE_ID",), in_address=True),
        },
        "anthropic-vertex": {
            "region": Option(("CLOUD_ML_REGION",), needed=True),
            "project": Option(("ANTHROPIC_VERTEX_PROJECT_ID",), needed=True),
        },
    }
)

# For each API, the package that finds credentials, and the extra that installs the package. A provider with a key needs
# no package.
PACKAGES = {
    "anthropic-aws": ("boto3", "aws"),
    "anthropic-bedrock": ("boto3", "aws"),
    "anthropic-foundry": ("azure.identity", "azure"),
    "anthropic-google-cloud": ("google.auth", "google"),
    "anthropic-vertex": ("google.auth", "google"),
}


def values_of(spec: ProviderSpec) -> Mapping[str, str | None]:
    """Returns the value of each option: from the file of models if it is set there, otherwise from the environment.
    Raises ConfigError for a missing option.
    """
    environment, found = read_environment(), dict[str, str | None]()
    for name, option in OPTIONS[spec.api.name].items():
        named = (environment.get(variable) for variable in option.variables)
        value = found[name] = spec.options.get(name) or next(filter(None, named), None)
        if value is None and (option.needed or (option.in_address and spec.base_url is None)):
            raise ConfigError(
                f"`options.{name}` of [providers.{spec.name}] must be set, or {' or '.join(option.variables)} in the"
                " environment."
            )
    return found

"""Master keys that never leave a key service."""

from typing import TYPE_CHECKING, Final

from pydantic import Field, SecretStr

from turnstream.config import Section, Settings
from turnstream.domain.errors import CannotOpen, ConfigError, StorageUnavailable
from turnstream.extension import Extension, MasterKey
from turnstream.libraries.secrets.settings import KeySettings

if TYPE_CHECKING:
    from turnstream.llm.models.catalog import Models

# The prefix that marks the name of a service key in TURNSTREAM_MASTER_KEY.
PREFIX: Final = "kms:"
_TRIAL: Final = "trial"  # the owner in the test of `doctor --ping`


class KeyServiceSettings(Section):
    key_service_url: str | None = Field(
        None,
        pattern="^https?://",
        description="address of a [key service](security.md#a-key-service), such as `https://vault.test/v1/transit`",
    )
    key_service_token: SecretStr | None = Field(None, description="token for it")
    key_service_timeout: float = Field(5.0, gt=0, description="longest wait for its answer")


def _master_key(settings: Settings, name: str) -> MasterKey | None:
    """Returns the service key `name`; None if the name does not begin with `kms:`. Raises ConfigError."""
    if not name.startswith(PREFIX):
        return None
    given = settings.section(KeyServiceSettings)
    if given.key_service_url is None:
        raise ConfigError(f"TURNSTREAM_KEY_SERVICE_URL must be set, because TURNSTREAM_MASTER_KEY names {name}.")
    from turnstream.extensions.key_service.service_key import ServiceKey

    token = given.key_service_token
    return ServiceKey(
        name.removeprefix(PREFIX),
        given.key_service_url,
        None if token is None else token.get_secret_value(),
        given.key_service_timeout,
    )


async def _check(settings: Settings, _: "Models", ping: bool) -> str:
    given = settings.section(KeySettings).master_key
    text = "" if given is None else given.get_secret_value()
    keys = {name: key for name in text.replace(",", " ").split() if (key := _master_key(settings, name))}
    if not keys:
        return "none"
    if not ping:
        return "the keys are asked for when they are needed"
    for name, key in keys.items():
        try:
            await key.unwrap(_TRIAL, await key.wrap(_TRIAL, bytes(32)))
        except (CannotOpen, StorageUnavailable) as error:
            raise ConfigError(
                f"The key {name.removeprefix(PREFIX)} of TURNSTREAM_MASTER_KEY cannot be used: {error}"
            ) from None
    return f"wraps and unwraps by {', '.join(name.removeprefix(PREFIX) for name in keys)}"


EXTENSION = Extension(
    "key_service",
    "master keys in a key service, such as Vault or OpenBao",
    settings=KeyServiceSettings,
    checks={"key service": _check},
    master_key=_master_key,
)

"""Checks of the models that settings name."""

from turnstream.config import Settings
from turnstream.domain.errors import ConfigError, RequestRefused
from turnstream.llm.models.catalog import Models


def check_chosen(models: Models, settings: Settings) -> None:
    """Raises ConfigError for a setting with the name of a missing model."""
    if settings.summary_model is not None:
        try:
            models.check(settings.summary_model)
        except RequestRefused as error:
            raise ConfigError(error.detail.replace("`model`", "TURNSTREAM_SUMMARY_MODEL", 1)) from None


def default_among(models: Models, name: str | None) -> str:
    """The same for given models. Raises ConfigError if `name` is not among them."""
    if name is None:
        return next(iter(models.listed()))
    try:
        models.check(name)
    except RequestRefused as error:
        raise ConfigError(error.detail.replace("`model`", "TURNSTREAM_MODEL", 1)) from None
    return name

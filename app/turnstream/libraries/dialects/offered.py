"""Lists the models that turns may use."""

from turnstream.api.services import Services
from turnstream.llm.models.catalog import Model


def offered_models(services: Services) -> list[tuple[Model, str]]:
    """Returns the models that turns may use, each with the name of its provider."""
    default = services.resolver.defaults.model
    listed = dict(services.resolver.models.listed())
    default_model = services.resolver.models.check(default)
    listed.setdefault(default_model.id, (default_model, services.resolver.models.provider_for(default).name))
    return [each for each in listed.values() if services.resolver.allowed.has_model(each[0].id)]

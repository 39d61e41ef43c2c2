"""Titles of chats, which a model of the operator's choice writes."""

from typing import TYPE_CHECKING

from pydantic import Field

from turnstream.config import Section, Settings
from turnstream.domain.errors import ConfigError, RequestRefused
from turnstream.extension import Context, Extension, Work

if TYPE_CHECKING:
    from turnstream.llm.models.catalog import Models


class TitleSettings(Section):
    title_model: str | None = Field(
        None, description="model that writes the title of a chat; by default its first message is the title"
    )


async def _check(settings: Settings, models: "Models", _: bool) -> str:
    if (model := settings.section(TitleSettings).title_model) is not None:
        try:
            models.check(model)
        except RequestRefused as error:
            raise ConfigError(error.detail.replace("`model`", "TURNSTREAM_TITLE_MODEL", 1)) from None
    return "a model writes them" if model else "the first message is the title"


def _work(context: Context) -> Work:
    from turnstream.extensions.titles.writer import TitleWriter
    from turnstream.libraries.side_calls import SideCalls

    if (model := context.settings.section(TitleSettings).title_model) is None:
        return Work()
    titles = TitleWriter(context.database, context.models.provider_for, model, SideCalls.of(context), context.notify)
    return Work(hooks=(titles,), tasks=(titles.run,))


EXTENSION = Extension(
    "titles", "titles of chats by a model", settings=TitleSettings, checks={"titles": _check}, work=_work
)

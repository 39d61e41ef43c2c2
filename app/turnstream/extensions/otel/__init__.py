"""Spans and metrics for OpenTelemetry, if the settings enable them."""

from typing import TYPE_CHECKING

from pydantic import Field

from turnstream.config import Section, Settings
from turnstream.extension import Context, Extension, Work
from turnstream.libraries.extras import need

if TYPE_CHECKING:
    from turnstream.llm.models.catalog import Models


class TraceSettings(Section):
    traces: bool = Field(False, description="true: spans for OpenTelemetry: see [traces](monitoring.md#traces)")
    traces_content: int = Field(
        0,
        ge=0,
        le=100_000,
        description="characters of messages, tool inputs and results in an attribute of a span; 0: none",
    )


async def _check(settings: Settings, _: "Models", ping: bool) -> str:
    from turnstream.extensions.otel.endpoint import check_endpoint

    if not settings.section(TraceSettings).traces:
        return "off"
    need("opentelemetry", "otel", "TURNSTREAM_TRACES")
    return await check_endpoint(ping)


def _work(context: Context) -> Work:
    settings = context.settings.section(TraceSettings)
    if settings.traces:
        from turnstream.extensions.otel.sdk import begin

        begin(settings.traces_content)
    return Work()


EXTENSION = Extension("otel", "spans for OpenTelemetry", TraceSettings, checks={"traces": _check}, work=_work)

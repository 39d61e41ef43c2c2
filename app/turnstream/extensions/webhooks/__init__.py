"""Webhooks: a signed request to the operator's server for each turn that ends or starts to wait."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from pydantic import Field, HttpUrl, SecretStr

from turnstream.config import Section, Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import Context, Extension, Work

if TYPE_CHECKING:
    from turnstream.engine.upkeep.sweeps import Sweep
    from turnstream.extensions.webhooks.deliveries import Receiver
    from turnstream.llm.models.catalog import Models
    from turnstream.storage.database import Database
    from turnstream.storage.runs.queue import WebhookKind


class WebhookSettings(Section):
    webhook_url: HttpUrl | None = Field(None, description="URL of the webhook")
    webhook_events: str = Field(
        "turn.ended", description="what the webhook reports: turn.ended, turn.waiting; separated by commas"
    )
    webhook_secret: SecretStr | None = Field(
        None, description="key that signs webhooks: base64, with or without whsec_ before it"
    )
    retain_webhooks_days: float = Field(
        7, gt=0, le=36_500, description="days for which the row of a finished webhook is kept"
    )


_WEBHOOK_EVENTS: "Mapping[str, WebhookKind]" = {"turn.ended": "ended", "turn.waiting": "waiting"}


def receiver_of(settings: Settings) -> "Receiver | None":
    """Returns the configured receiver. Raises ConfigError."""
    from turnstream.extensions.webhooks.deliveries import Receiver
    from turnstream.libraries.outgoing.signature import key_of

    given = settings.section(WebhookSettings)
    if given.webhook_url is None:
        return None
    if given.webhook_secret is None:
        raise ConfigError("TURNSTREAM_WEBHOOK_SECRET must be set with TURNSTREAM_WEBHOOK_URL: it signs the deliveries.")
    secret = given.webhook_secret.get_secret_value()
    try:
        key_of(secret)
    except ValueError as error:
        raise ConfigError(f"TURNSTREAM_WEBHOOK_SECRET: {error}") from None
    names = {name.strip() for name in given.webhook_events.split(",")}
    if not names <= _WEBHOOK_EVENTS.keys():
        raise ConfigError(f"TURNSTREAM_WEBHOOK_EVENTS must name some of: {', '.join(_WEBHOOK_EVENTS)}.")
    kinds = frozenset(_WEBHOOK_EVENTS[name] for name in names)
    return Receiver(str(given.webhook_url), secret, settings.root_path, kinds)


async def _check(settings: Settings, _: "Models", ping: bool) -> str:
    from turnstream.extensions.webhooks.deliveries import ping_receiver

    if (receiver := receiver_of(settings)) is None:
        return "none is sent"
    if not ping:
        return "is signed; only --ping calls the receiver"
    answer = await ping_receiver(receiver)
    if not isinstance(answer, int) or not 200 <= answer < 300:
        raise ConfigError(
            f"the receiver answered {answer} to a signed `ping`; it must answer 2xx, also to events it does not know"
        )
    return "the receiver answers"


def sweeps_of(settings: Settings, database: "Database") -> "list[Sweep]":
    from turnstream.engine.upkeep.sweeps import HOURS, Sweep
    from turnstream.extensions.webhooks.queue import FINISHED
    from turnstream.storage.retention import aged_rows

    days = settings.section(WebhookSettings).retain_webhooks_days
    return [Sweep(f"old {table}", HOURS, partial(aged_rows, database, rows, days)) for table, rows in FINISHED.items()]


def _work(context: Context) -> Work:
    from turnstream.extensions.webhooks.deliveries import WebhookDeliveries, WebhookPolicy
    from turnstream.extensions.webhooks.queue import Webhooks

    settings, database = context.settings, context.database
    sweeps = sweeps_of(settings, database)
    if (receiver := receiver_of(settings)) is None:
        return Work(sweeps=sweeps)
    kinds = sorted(receiver.kinds)
    deliveries = [
        WebhookDeliveries(Webhooks(database, kind), receiver, WebhookPolicy(), context.call_links) for kind in kinds
    ]
    return Work(hooks=deliveries, tasks=[each.run for each in deliveries], sweeps=sweeps, webhooks=kinds)


EXTENSION = Extension(
    "webhooks",
    "requests to a server of yours for turns that end or wait",
    settings=WebhookSettings,
    checks={"webhook": _check},
    work=_work,
)

"""Replaces references in an input by the stored items to which they refer."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from uuid import UUID

from pydantic import TypeAdapter

from turnstream.api.services import Services
from turnstream.domain.errors import NotFound, RequestRefused
from turnstream.domain.identity import Identity
from turnstream.extensions.openai_api.items import items_of_path
from turnstream.extensions.openai_api.objects import Json, turn_of_item
from turnstream.extensions.openai_api.schemas import InputItem, ItemIn, OutputItem

_ITEM: TypeAdapter[InputItem] = TypeAdapter(ItemIn)
_MOST_BRANCHES = 20  # branches to which one input may refer; each is read


async def with_referenced(services: Services, identity: Identity, items: Sequence[InputItem]) -> Sequence[InputItem]:
    """Returns the items, with each reference replaced by its item. Raises RequestRefused."""
    places = [_place_of(item) for item in items]
    wanted = {place for place in places if place is not None}
    known: dict[str, Json] = {}
    branches = 0
    for place in reversed(places):  # the branch of the last reference contains most of the other items
        if place is None or place not in wanted:
            continue
        if branches == _MOST_BRANCHES:
            detail = f"`input` must refer to items of at most {_MOST_BRANCHES} branches of chats."
            raise RequestRefused(detail, field="input")
        branches += 1
        chat, leaf = place
        identity.require_reach(chat)
        wanted.discard(place)
        with suppress(NotFound):
            path = await services.storage.turns.path(identity.owner, chat, leaf)
            named = [turn for turn in path if (chat, turn.id) in wanted or turn.id == leaf]
            wanted -= {(chat, turn.id) for turn in named}
            known |= {each["id"]: each for each in await items_of_path(named)}
    return [_found(item, number, known) for number, item in enumerate(items)]


def _place_of(item: InputItem) -> tuple[UUID, UUID] | None:
    """Returns the chat and the turn of the item to which a reference refers."""
    if not isinstance(item, OutputItem) or item.type != "item_reference":
        return None
    place = turn_of_item(item.id)
    return place and place[:2]


def _found(item: InputItem, number: int, known: Mapping[str, Json]) -> InputItem:
    if not isinstance(item, OutputItem) or item.type != "item_reference":
        return item
    if (referenced := known.get(item.id or "")) is None:
        field = f"input.{number}.id"
        raise RequestRefused(f"`{field}` must be the id of an item; there is no item {item.id}.", field=field)
    return _ITEM.validate_python(referenced)

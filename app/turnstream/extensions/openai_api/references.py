"""References of an input to items that are here."""

from collections.abc import Sequence
from contextlib import suppress

from pydantic import TypeAdapter

from turnstream.api.services import Services
from turnstream.domain.errors import NotFound, RequestRefused
from turnstream.domain.identity import Identity
from turnstream.extensions.openai_api.items import items_of_path
from turnstream.extensions.openai_api.objects import Json, turn_of_item
from turnstream.extensions.openai_api.schemas import InputItem, ItemIn, OutputItem

_ITEM: TypeAdapter[InputItem] = TypeAdapter(ItemIn)


async def with_referenced(services: Services, identity: Identity, items: Sequence[InputItem]) -> Sequence[InputItem]:
    """The items, with what each reference names in its place. Raises RequestRefused."""
    known: dict[str, Json] = {}
    read = set()
    found: list[InputItem] = []
    for number, item in enumerate(items):
        if not isinstance(item, OutputItem) or item.type != "item_reference":
            found.append(item)
            continue
        place = turn_of_item(item.id)
        if place is not None and place[:2] not in read:
            read.add(place[:2])
            identity.require_reach(place[0])
            with suppress(NotFound):
                turn = await services.storage.turns.get(identity.owner, place[0], place[1])
                known |= {each["id"]: each for each in await items_of_path([turn])}
        if (referenced := known.get(item.id or "")) is None:
            field = f"input.{number}.id"
            raise RequestRefused(f"`{field}` must be the id of an item; there is no item {item.id}.", field=field)
        found.append(_ITEM.validate_python(referenced))
    return found

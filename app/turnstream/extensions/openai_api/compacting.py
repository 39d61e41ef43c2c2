"""The handler of compaction. A model summarises the conversation in a temporary chat, which is deleted afterwards."""

from collections.abc import Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from turnstream.api.codec import to_json
from turnstream.api.exchange import post_message
from turnstream.api.http.reading import read_body
from turnstream.api.services import identity_of, services_and_owner
from turnstream.domain.errors import RequestRefused
from turnstream.domain.kinds import TEXT
from turnstream.extensions.openai_api.history import PLACE, past_items
from turnstream.extensions.openai_api.inputs import Input, items_of, new_turn, options_of, split_input
from turnstream.extensions.openai_api.items import items_of_path
from turnstream.extensions.openai_api.objects import Json, ResponseId, failure_of
from turnstream.extensions.openai_api.references import with_referenced
from turnstream.extensions.openai_api.responses import place_of, previous_path
from turnstream.extensions.openai_api.schemas import SUMMARY_MARK, InputItem, MessageItem, ResponseIn, is_summary
from turnstream.extensions.openai_api.stream import response_reader
from turnstream.kit.ids import new_id
from turnstream.libraries.copies.cutting import cut_after
from turnstream.libraries.copies.rows import Fork, Forks
from turnstream.libraries.dialects.chats import new_chat
from turnstream.libraries.dialects.histories import history_of
from turnstream.libraries.dialects.past_exchanges import histories_of
from turnstream.libraries.dialects.posting import post_in_seeded_chat
from turnstream.libraries.dialects.unstored import Forgetting
from turnstream.llm.conversation.messages import SUMMARISE
from turnstream.storage.chats.exchanges import Target


async def compact_response(request: Request) -> Response:
    """Returns the messages of the user, and an item with the summary of the conversation."""
    services, owner = services_and_owner(request)
    sent, _ = await read_body(request, ResponseIn)
    items = await with_referenced(services, identity_of(request), items_of(sent.input))
    options = replace(options_of(services, sent), tools=[], format=None)
    place = await place_of(request, services, sent)
    for scope in ("send", "chat"):  # the same scopes as for a recorded history
        identity_of(request).require(scope)
    identity_of(request).require_reach(None)
    instructions = (await split_input(items)).instructions
    new = new_turn(
        services, options, Input((), None, instructions, [{"type": "text", "text": SUMMARISE}]), follows=False
    )
    if place.origin is not None:
        if items:
            raise RequestRefused("`input` must be left out if the request names a conversation.", field="input")
        path = await previous_path(services, owner, place.origin)
        said = [item for item in await items_of_path(path) if item.get("role") == "user"]
        fork = Fork(cut_after(path[-1], None), new_chat=True)
        chat, leaf = await Forks(services.storage.of_owner).make(owner, fork, None)
        turn = (await post_message(services, new, Target(owner, chat, leaf), None)).assistant_turn
    else:
        if not items:
            raise RequestRefused("`input` must have the items of a conversation.", field="input")
        said = _said(items)
        history = history_of(services, owner, past_items(items), PLACE)
        turn = (await post_in_seeded_chat(services, new, new_chat(owner), None, history)).assistant_turn
    await histories_of(services).keep_unstored(turn, owner)
    reader = response_reader(services, owner, turn, 0)
    await reader.end()
    turn = await services.storage.turns.get(owner, turn.chat_id, turn.id)
    response = reader.events.response()
    await Forgetting(services, owner, turn, keeps_chat=False)()
    if response["status"] != "completed":
        error = response["error"] or {
            "message": f"The summary is {response['status']}.",
            "type": "server_error",
            "param": None,
            "code": "server_error",
        }
        status = failure_of(turn.error.type)[0] if turn.error else 500
        return Response(to_json({"error": error}), status, {"x-should-retry": "false"}, "application/json")
    summary = "\n\n".join(block.text for block in turn.blocks if block.type == TEXT)
    compaction = {"type": "compaction", "id": f"cmp_{new_id().hex}", "encrypted_content": SUMMARY_MARK + summary}
    body = {
        "id": str(ResponseId.of(turn)),
        "object": "response.compaction",
        "created_at": response["created_at"],
        "output": [*said, compaction],
        "usage": response["usage"],
    }
    return Response(to_json(body), 200, options.headers, "application/json")


def _said(items: Sequence[InputItem]) -> list[Json]:
    """Returns the messages of the user without earlier summaries, because the new summary covers these."""
    said: list[Json] = []
    for item in items:
        if isinstance(item, MessageItem) and item.role == "user" and not is_summary(item):
            content = item.content
            parts = (
                [{"type": "input_text", "text": content}]
                if isinstance(content, str)
                else [part.sent() for part in content]
            )
            id = item.id or f"msg_{new_id().hex}"
            said.append({"type": "message", "id": id, "role": "user", "status": "completed", "content": parts})
    return said

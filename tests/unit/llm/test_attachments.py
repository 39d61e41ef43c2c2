"""Images and documents: from the stored rows to the requests of each provider."""

import json
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import pytest

from turnstream.domain.blocks import Block
from turnstream.domain.kinds import DOCUMENT, IMAGE, TEXT, TOOL_RESULT
from turnstream.domain.results import layout_of, parts_of
from turnstream.llm.conversation.attachments import GONE, LEFT_OUT, upload_ids_in, with_uploads, without_files
from turnstream.llm.provider import Message

ID = UUID(int=7)


def block(type: str, data: object, text: str = "") -> Block:
    return Block(0, 0, 0, type, text, None if data is None else json.dumps(data))


def upload(media_type: str) -> dict[str, object]:
    return {"type": "upload", "id": str(ID), "media_type": media_type}


def sent(of: Block, uploads: dict[UUID, bytes]) -> Block:
    ((message,),) = (with_uploads([Message("user", (of,))], uploads),)
    return message.blocks[0]


def test_words_alone_mean_no_upload_and_stay_as_they_are() -> None:
    messages = [Message("user", (Block(0, 0, 0, TEXT, "Hi"),))]
    assert upload_ids_in(messages) == frozenset()
    assert with_uploads(messages, {})[0] is messages[0]


@pytest.mark.parametrize(
    ("type", "media_type", "source"),
    [
        (IMAGE, "image/png", {"type": "base64", "media_type": "image/png", "data": "eA=="}),
        (DOCUMENT, "application/pdf", {"type": "base64", "media_type": "application/pdf", "data": "eA=="}),
        (DOCUMENT, "text/plain", {"type": "text", "media_type": "text/plain", "data": "x"}),
    ],
)
def test_an_upload_is_sent_with_its_bytes(type: str, media_type: str, source: dict[str, str]) -> None:
    kept = block(type, {"type": type, "source": upload(media_type)})
    assert upload_ids_in([Message("user", (kept,))]) == {ID}
    assert json.loads(sent(kept, {ID: b"x"}).data or "") == {"type": type, "source": source}


def test_an_upload_that_is_gone_is_replaced_by_a_text() -> None:
    gone = sent(block(IMAGE, {"source": upload("image/png")}), {})
    assert (gone.type, gone.text, gone.data) == (TEXT, GONE, None)


def test_a_text_of_the_library_is_in_the_row() -> None:
    kept = block(DOCUMENT, {"title": "t", "source": {"type": "text", "media_type": "text/plain"}}, "words")
    told = sent(kept, {})
    source = {"type": "text", "media_type": "text/plain", "data": "words"}
    assert (told.text, json.loads(told.data or "")) == ("", {"title": "t", "source": source})


@pytest.mark.parametrize("data", [None, {}, {"source": None}, {"source": {"type": "url", "url": "x"}}])
def test_other_sources_are_not_changed(data: object) -> None:
    kept = block(IMAGE, data)
    assert sent(kept, {}) == kept


# --- in a result ------------------------------------------------------------------------------------------------------

RESULT = Block(0, 1, 1, TOOL_RESULT, "one\ntwo", None, "toolu_1", "look")


def returned(*files: Mapping[str, object]) -> Block:
    return replace(RESULT, data=layout_of(["one", *files, "two"]))


def test_files_of_a_result_are_sent_with_their_bytes() -> None:
    kept = returned(
        {"type": IMAGE, "source": upload("image/png")}, {"type": IMAGE, "source": {"type": "url", "url": "x"}}
    )
    assert upload_ids_in([Message("user", (kept, RESULT))]) == {ID}
    assert parts_of(sent(kept, {ID: b"x"})) == [
        {"type": TEXT, "text": "one"},
        {"type": IMAGE, "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}},
        {"type": IMAGE, "source": {"type": "url", "url": "x"}},
        {"type": TEXT, "text": "two"},
    ]


def test_a_result_without_uploads_is_left_alone_byte_for_byte() -> None:
    strange = replace(
        RESULT, data='{"type": "tool_result", "content": [{"type":"image","source":{"type":"url","url":"x"}}]}'
    )
    words = Block(0, 0, 0, TEXT, "Hi")
    (message,) = with_uploads([Message("user", (strange, RESULT, words))], {})
    assert [kept is before for kept, before in zip(message.blocks, (strange, RESULT, words), strict=True)] == [True] * 3


def test_a_file_of_a_result_that_is_gone_is_replaced_by_a_text() -> None:
    kept = returned({"type": IMAGE, "source": upload("image/png")})
    assert [part["text"] for part in parts_of(sent(kept, {}))] == ["one", GONE, "two"]


def test_a_file_that_the_model_cannot_read_is_replaced_by_a_text() -> None:
    image, pdf = ({"type": type, "source": upload("x")} for type in (IMAGE, DOCUMENT))
    messages = [Message("user", (returned(image, pdf), block(IMAGE, image), block(DOCUMENT, pdf))), Message("user", ())]
    ((result, picture, document), ()) = (message.blocks for message in without_files(messages, [IMAGE]))
    said = LEFT_OUT.format(type=IMAGE)
    assert parts_of(result)[1:3] == [{"type": TEXT, "text": said}, pdf]
    assert (picture.type, picture.text, picture.data) == (TEXT, said, None)
    assert document == block(DOCUMENT, pdf)

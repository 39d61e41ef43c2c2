"""The row that stores a result of several parts, and the parts that are read from the row."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstream.domain.blocks import Block
from turnstream.domain.compaction import size_of_block
from turnstream.domain.results import (
    ResultPart,
    content_of,
    count_files,
    joined_texts,
    layout_of,
    parts_of,
    summary_notes,
)

IMAGE = {"type": "image", "source": {"type": "upload", "id": "7", "media_type": "image/png"}}
PDF = {"type": "document", "source": {"type": "upload", "id": "8", "media_type": "application/pdf"}}

texts = st.text(st.characters(codec="utf-8"), min_size=1)


def row(parts: Sequence[ResultPart]) -> Block:
    return Block(0, 1, 1, "tool_result", joined_texts(parts), layout_of(parts), "toolu_1", "look")


def said(part: ResultPart) -> Any:
    return {"type": "text", "text": part} if isinstance(part, str) else part


@given(st.lists(texts | st.sampled_from([IMAGE, PDF]), max_size=6))
def test_parts_are_read_as_they_were(parts: list[ResultPart]) -> None:
    assert parts_of(row(parts)) == list(map(said, parts))
    assert count_files(row(parts)) == sum(not isinstance(part, str) for part in parts)


@pytest.mark.parametrize("parts", [[], ["words"]])
def test_a_single_text_has_no_layout(parts: list[ResultPart]) -> None:
    assert layout_of(parts) is None


def test_all_words_are_one_text_and_the_layout_says_where_the_files_are() -> None:
    kept = row(["one", IMAGE, "zwölf"])
    assert kept.text == "one\nzwölf"
    content = [{"type": "text", "length": 3}, IMAGE, {"type": "text", "length": 5}]
    assert json.loads(kept.data or "") == {"type": "tool_result", "content": content}
    assert content_of(kept.data or "") == content
    assert content_of('{"type":"tool_result"}') == ()


def test_a_file_counts_as_about_so_many_tokens_as_a_picture_has() -> None:
    assert size_of_block(row(["x" * 400])) == 101
    assert 2 * 1600 < size_of_block(row([IMAGE, PDF])) < 2 * 1600 + 100


def test_the_costs_of_summaries_are_in_the_notes_of_their_results() -> None:
    note = {"summarised": {"of": 9000, "model": "small", "usage": {"output_tokens": 7}}}
    summarised = Block(0, 1, 1, "tool_result", "In short.", notes=json.dumps(note))
    others = [replace(summarised, notes=notes) for notes in (None, '{"cut":{}}')]
    others.append(replace(summarised, type="text"))
    assert list(summary_notes([*others, summarised])) == [note["summarised"]]

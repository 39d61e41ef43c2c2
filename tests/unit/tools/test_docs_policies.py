"""Compares the pages about tools and their policies with the code."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

from turnstream.tools.policy import POLICY_NOTES, Policy
from turnstream.tools.serialize import as_text
from turnstream.tools.tool import OutcomeKind
from turnstream_terminal.blocks import _REMARKS

_ROOT = Path(__file__).parents[3]
_DOCS = _ROOT / "docs"
PAGE = "\n".join((_DOCS / name).read_text(encoding="utf-8") for name in ("tools.md", "tool-policies.md"))


def column(heading: str, number: int) -> list[str]:
    """Returns the words in backticks in one column of the first table below a heading."""
    section = PAGE.split(f"\n{heading}\n", 1)[1]
    table = re.search(r"^(\|.*\n)+", section, re.MULTILINE)
    assert table is not None
    cells = [line.strip("|").split(" | ")[number] for line in table[0].splitlines()[2:]]
    return [word for cell in cells for word in re.findall(r"`(\w+)`", cell)]


def test_every_policy_is_documented() -> None:
    assert column("# Policies", 0) == [field.name for field in fields(Policy)]


SHOWN_AS_DECISIONS = {"approval"}


def test_every_note_is_counted_and_has_words_on_the_page_and_in_the_terminal() -> None:
    texts = (_ROOT / "app/turnstream/web/static/texts.js").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^  notes: \{\n    policies: \{$(.*?)^    \},$", texts, re.MULTILINE | re.DOTALL)
    for words in (set(re.findall(r"^ +(\w+):", listed, re.MULTILINE)), _REMARKS.keys()):
        assert POLICY_NOTES - words == SHOWN_AS_DECISIONS
    assert set(column("## Notes", 0)) == POLICY_NOTES


def test_every_kind_of_outcome_is_documented() -> None:
    assert set(column("## What becomes of a result", 2)) == set(get_args(OutcomeKind))


def test_the_example_of_the_text_form_is_right() -> None:
    shown = re.search(r'^`results="text"` writes `(.*)` as\n\n```text\n(.*?)\n```$', PAGE, re.MULTILINE | re.DOTALL)
    assert shown is not None
    assert as_text(json.loads(shown[1])) == shown[2]

"""A docstring, split into what the tool does and what its parameters mean."""

import re
from textwrap import dedent

_SECTION = re.compile(r"^(?:Args|Arguments|Parameters):[ ]*\n(?P<body>(?:[ ]+\S.*(?:\n|\Z)|[ ]*\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^(?P<name>\w+)(?:[ ]*\([^\n]*?\))?:[ ]*(?P<text>.*(?:\n[ ]+\S.*)*)", re.MULTILINE)
_FIELD = re.compile(r"^:param[ ](?:[^:\n]*[ ])?(?P<name>\w+):[ ]*(?P<text>.*(?:\n[ ]+\S.*)*)\n?", re.MULTILINE)


def split_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description without its parameter lines, and what they say by name.

    `text` is a clean docstring. Understood are `:param name: text` and the `name: text` lines of an `Args:`
    section; a line that is indented deeper goes on with the one before.
    """
    bodies = [dedent(found["body"]) for found in _SECTION.finditer(text)]
    entries = [found for body in bodies for found in _ENTRY.finditer(body)]
    entries += _FIELD.finditer(text)
    description = _FIELD.sub("", _SECTION.sub("", text)).strip()
    return description, {entry["name"]: " ".join(entry["text"].split()) for entry in entries}

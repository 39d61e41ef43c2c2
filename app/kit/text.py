"""Text that Postgres can store, without NUL characters and lone surrogates; and text as a sentence."""

import re

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def unstorable(text: str) -> str | None:
    """The reason why `text` cannot be stored; None when it can."""
    found = _UNSTORABLE.search(text)
    if found is None:
        return None
    what = "a NUL character" if found[0] == "\x00" else "a lone surrogate"
    return f"contains {what} at offset {found.start()}"


def storable(text: str) -> str:
    """`text` with every character that cannot be stored replaced by U+FFFD, one for one."""
    if text.isascii() and "\x00" not in text:
        return text
    return _UNSTORABLE.sub("\ufffd", text)


def sentence(text: str) -> str:
    """`text` with a full stop, unless it ends with a mark. Another sentence may follow it."""
    return text if text.endswith((".", "!", "?", ":", "…")) else f"{text}."

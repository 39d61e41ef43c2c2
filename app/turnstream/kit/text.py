"""Text that Postgres can store, without NUL characters and lone surrogates; and text as a sentence."""

import re

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def unstorable(text: str) -> str | None:
    """The reason why `text` cannot be stored; None when it can."""
    if _is_plain(text) or (found := _UNSTORABLE.search(text)) is None:
        return None
    what = "a NUL character" if found[0] == "\x00" else "a lone surrogate"
    return f"contains {what} at offset {found.start()}"


def storable(text: str) -> str:
    """`text` with every character that cannot be stored replaced by U+FFFD, one for one."""
    if _is_plain(text):
        return text
    return _UNSTORABLE.sub("\ufffd", text)


def _is_plain(text: str) -> bool:
    """Decides the usual case in a hundredth of the time of a search, and in a fifth if the text is not ASCII."""
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
    """`text` with a full stop, unless it ends with a mark. Another sentence may follow it."""
    return text if text.endswith((".", "!", "?", ":", "…")) else f"{text}."

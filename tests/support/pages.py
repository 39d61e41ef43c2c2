"""The pages of this repository: the README, the folder docs, and the pages of distributions and of tests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
_FOLDERS = (
    "RELEASING.md",
    "docs/**/*.md",
    "app/turnstream_*/README.md",
    "app/turnstream/web/README.md",
    "app/turnstream/web/packages/*.md",
    "app/turnstream/extensions/*/README.md",
    "tests/*/README.md",
)

PAGES: Final = (ROOT / "README.md", *sorted(page for folder in _FOLDERS for page in ROOT.glob(folder)))


class Block(NamedTuple):
    page: str
    heading: str
    language: str
    code: str


def _blocks() -> Iterator[Block]:
    for page in PAGES:
        heading, language, lines = "", None, list[str]()
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("```") and language is None:
                language, lines = line.removeprefix("```"), []
            elif line == "```" and language is not None:
                yield Block(str(page.relative_to(ROOT)), heading, language, "\n".join(lines) + "\n")
                language = None
            elif language is not None:
                lines.append(line)
            elif line.startswith("#"):
                heading = line.lstrip("# ")


BLOCKS: Final = list(_blocks())


def blocks(page: str, heading: str, language: str) -> list[str]:
    """Returns the code blocks of one language below a heading of a page."""
    return [block.code for block in BLOCKS if block[:3] == (page, heading, language)]

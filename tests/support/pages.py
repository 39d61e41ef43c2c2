"""The pages of this repository: the README, the folder docs, and the pages of distributions and of tests."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_FOLDERS = (
    "docs/**/*.md",
    "app/turnstream_*/README.md",
    "app/turnstream/web/README.md",
    "app/turnstream/web/packages/*.md",
    "app/turnstream/extensions/*/README.md",
    "tests/*/README.md",
)

PAGES: Final = (ROOT / "README.md", *sorted(page for folder in _FOLDERS for page in ROOT.glob(folder)))

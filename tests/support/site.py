"""The documentation as a site (`make site`): the pages of this repository in four kinds, with a search that runs in the
browser. A broken link or anchor is an error.
"""

import re
import shutil
import sys
from functools import partial
from importlib.metadata import version
from os.path import relpath
from pathlib import Path
from typing import Final

from sphinx.application import Sphinx

from tests.support.pages import ROOT

FOLDER: Final = ROOT / ".site"
VERSION: Final = version("turnstream")

# Each page is listed once, in the order of the navigation.
KINDS: Final = {
    "Tutorials": ("docs/quickstart.md", "docs/tutorial.md"),
    "How-to guides": (
        "docs/cookbook.md",
        "docs/install.md",
        "docs/tools.md",
        "docs/tool-policies.md",
        "docs/tools-of-a-turn.md",
        "docs/http-tools.md",
        "docs/mcp.md",
        "docs/approvals.md",
        "docs/background-tools.md",
        "docs/agents.md",
        "docs/schedules.md",
        "docs/models.md",
        "docs/providers.md",
        "docs/embedding.md",
        "docs/hooks.md",
        "docs/guardrails.md",
        "docs/extensions.md",
        "docs/frontends.md",
        "app/turnstream/web/packages/README.md",
        "app/turnstream_client/README.md",
        "app/turnstream_terminal/README.md",
        "docs/dialects.md",
        "docs/ai-sdk.md",
        "app/turnstream/web/packages/assistant-ui.md",
        "app/turnstream/web/packages/ai-elements.md",
        "docs/openai.md",
        "docs/anthropic.md",
        "docs/ag-ui.md",
        "app/turnstream/web/packages/copilotkit.md",
        "docs/programs.md",
        "docs/settings.md",
        "docs/identity.md",
        "docs/postgres.md",
        "docs/limits.md",
        "docs/monitoring.md",
        "docs/admin.md",
        "docs/repair.md",
        "docs/troubleshooting.md",
        "docs/runbooks.md",
        "docs/data.md",
        "docs/capacity.md",
        "docs/scaling.md",
        "app/turnstream_lab/README.md",
        "app/turnstream_conformance/README.md",
        "docs/contributing.md",
        "RELEASING.md",
    ),
    "Reference": (
        "docs/api.md",
        "docs/protocol.md",
        "docs/reference/settings.md",
        "docs/reference/commands.md",
        "docs/reference/metrics.md",
        "docs/reference/log-events.md",
        "docs/glossary.md",
        "docs/states.md",
        "docs/tables.md",
        "docs/ag-ui-profile.md",
        "docs/stability.md",
        "docs/changelog.md",
    ),
    "Explanation": (
        "docs/comparison.md",
        "docs/benchmarks.md",
        "docs/architecture.md",
        "docs/decisions.md",
        "docs/life-of-a-turn.md",
        "docs/security.md",
        "app/turnstream/web/README.md",
        "app/turnstream/extensions/openai/README.md",
        "tests/bench/README.md",
        "tests/bench/scaling.md",
        "tests/faults/README.md",
    ),
}

_LINK = re.compile(r"(\]\()(?!https?:)([^)#]+)(#[^)]*)?\)")
_HIGHLIGHTED_AS = {"jsx": "typescript", "mermaid": "text"}  # the language that Pygments uses instead
_LANGUAGE = re.compile(r"^```(jsx|mermaid)$", re.MULTILINE)
_SETTINGS = {
    "project": "turnstream",
    "version": VERSION,
    "release": VERSION,
    "extensions": ["myst_parser"],
    "root_doc": "index",
    "html_theme": "furo",
    "html_title": f"turnstream {VERSION}",
    "html_copy_source": False,
    "html_show_sphinx": False,
    "myst_heading_anchors": 6,
    "suppress_warnings": ["misc.highlighting_failure"],  # an example may have an ellipsis
}


def kinds() -> dict[str, list[Path]]:
    """Returns the pages of each kind."""
    return {kind: [ROOT / page for page in pages] for kind, pages in KINDS.items()}


def copy_pages(target: Path) -> None:
    """Writes the pages, and the files to which they link, into the same folders. The README is the first page."""
    everything = kinds()
    for page in [ROOT / "README.md", *(page for pages in everything.values() for page in pages)]:
        text = _LINK.sub(partial(_link, page=page, target=target), page.read_text(encoding="utf-8"))
        _write(target / _name(page), _LANGUAGE.sub(lambda match: f"```{_HIGHLIGHTED_AS[match[1]]}", text))
    trees = (
        f"\n```{{toctree}}\n:hidden:\n:caption: {kind}\n\n" + "\n".join(map(_name, pages)) + "\n```\n"
        for kind, pages in everything.items()
    )
    with (target / "index.md").open("a", encoding="utf-8") as index:
        index.writelines(trees)


def _name(page: Path) -> str:
    return "index.md" if page == ROOT / "README.md" else str(page.relative_to(ROOT))


def _link(match: re.Match[str], *, page: Path, target: Path) -> str:
    file = (page.parent / match[2]).resolve()
    if file.suffix != ".md":
        (target / _name(file)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target / _name(file))
    return f"{match[1]}{relpath(target / _name(file), (target / _name(page)).parent)}{match[3] or ''})"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def index_for_models() -> str:
    """Returns `llms.txt`: each page with its first sentence. The links lead to the pages in Markdown."""
    lines = ["# turnstream", "", f"> {_summary(ROOT / 'README.md')}"]
    for kind, pages in kinds().items():
        lines += ["", f"## {kind}", ""]
        lines += [f"- [{_title(page)}]({_name(page)}): {_summary(page)}" for page in pages]
    return "\n".join(lines) + "\n"


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ")


def _summary(page: Path) -> str:
    """Returns the first sentence of the page, without its links."""
    paragraphs = page.read_text(encoding="utf-8").split("\n\n")[1:]
    prose = next((each for each in paragraphs if not each.startswith(("|", "#", "```", "![", "- "))), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(prose.split()))
    return re.split(r"(?<=\.)\s", plain, maxsplit=1)[0]


def build(folder: Path) -> Path:
    """Builds the site, and returns its folder."""
    source, html = folder / "source", folder / "html"
    shutil.rmtree(folder, ignore_errors=True)
    copy_pages(source)
    render(source, html)
    for page in source.rglob("*.md"):
        _write(html / page.relative_to(source), page.read_text(encoding="utf-8"))
    _write(html / "llms.txt", index_for_models())
    return html


def render(source: Path, html: Path) -> None:
    """Renders the pages. Exits with an error after all warnings, for example if a link leads nowhere."""
    app = Sphinx(
        source,
        None,
        html,
        html.parent / "cache",
        "html",
        confoverrides=_SETTINGS,
        status=None,
        warning=sys.stderr,
        warningiserror=True,
    )
    app.build()
    if app.statuscode:
        raise SystemExit("The site was not built: the warnings above name the pages.")


if __name__ == "__main__":
    print(f"The site is in {build(FOLDER).relative_to(ROOT)}.")

"""The JavaScript packages, which npm has packed and installed: their types, sizes and hooks."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.node.conftest import BINARIES, FOLDER, ROOT, ScriptServer, run
from tests.node.types import types

pytestmark = [
    pytest.mark.extensions("ai_sdk"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(180),
]  # npm may need time for the installation

MOST_BYTES = 5_000
SCENES: dict[str, Any] = {
    "chat": {
        "empty": "ready",
        "kinds": ["thinking", "text", "tool_use", "tool_use", "tool_result", "tool_result", "text"],
        "streams": 1,
        "titled": "tools",
        "kept": True,
        "same": True,
        "turns": 2,
        "last": "That is it.",
    },
    "decisions": {"statuses": ["complete", "complete", "complete", "cancelled"], "turns": 0},
    "options": {
        "results": ['{"city":"?","degrees":12}', '{"city":"Bern"}'],
        "output": {"sea": "North"},
        "file": True,
        "error": "It cannot be done.",
    },
    "suspense": {"loading": False, "reads": 1},
    "server": {"words": "plain That is it.", "without": "loading", "requests": 0},
    "feed": {"first": True, "streams": 1},
    "anew": {"status": "ready", "refuse": False, "last": "That is it."},
    "refused": {"status": 404},
}


@pytest.mark.full
async def test_the_types_in_the_tree_are_those_of_the_document_and_of_the_modules(node: str) -> None:
    for path, content in types():
        assert path.read_text(encoding="utf-8") == content, f"{path.relative_to(ROOT)}: run `make types`"


async def test_a_program_in_typescript_uses_the_installed_packages(packages: Path) -> None:
    (packages / "user.mts").write_text((FOLDER / "packages.mts").read_text(encoding="utf-8"), encoding="utf-8")
    options = ["--strict", "--noEmit", "--module", "nodenext", "--target", "es2024", "--lib", "es2024,dom"]
    run(packages, BINARIES / "tsc", *options, "--skipLibCheck", "user.mts")


def bundled(folder: Path, source: str) -> bytes:
    """Bundles the program for browsers, and leaves out React and the AI SDK."""
    (folder / "entry.tsx").write_text(source, encoding="utf-8")
    others = [f"--external:{name}" for name in ("react", "react-dom", "ai", "@ai-sdk/react")]
    options = ["--bundle", "--minify", "--format=esm", "--jsx=automatic", "--log-level=warning", "--outfile=bundle.js"]
    run(folder, BINARIES / "esbuild", "entry.tsx", *options, *others)
    return (folder / "bundle.js").read_bytes()


async def test_the_packages_are_small_and_unused_modules_are_omitted(packages: Path) -> None:
    page = (ROOT / "app/turnstream/web/packages/README.md").read_text(encoding="utf-8")
    for name in ("client", "react", "ai-sdk"):
        size = len(gzip.compress(bundled(packages, f'export * from "@turnstream/{name}"'), mtime=0))
        assert size < MOST_BYTES
        (kilobytes,) = re.findall(rf"^\| `@turnstream/{name}` \|.*\| ([\d.]+) kB \|$", page, re.MULTILINE)
        assert abs(float(kilobytes) - size / 1000) < 0.3, (
            f"app/turnstream/web/packages/README.md: {name} has {size / 1000:.1f} kB"
        )
        assert bundled(packages, f'import "@turnstream/{name}"') == b""
    part = bundled(packages, 'export { hasEnded } from "@turnstream/client"')
    assert len(part) < 200


async def test_the_examples_of_the_page_fit_the_packages(packages: Path, node: str) -> None:
    page = (ROOT / "app/turnstream/web/packages/README.md").read_text(encoding="utf-8")
    client, react, sdk = re.findall(r"^```(?:ts|jsx)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    for example in (f"const token = ''\n{client}", sdk):
        bundled(packages, example)
    show = "import { renderToString } from 'react-dom/server'\nconsole.log(renderToString(<Chat id='1' />))"
    bundled(packages, react + show)
    assert run(packages, node, "bundle.js") == "<p>…</p>\n"


async def test_the_example_of_each_readme_fits_its_package(packages: Path) -> None:
    for name in ("client", "react", "ai-sdk"):
        readme = (packages / "node_modules/@turnstream" / name / "README.md").read_text(encoding="utf-8")
        (example,) = re.findall(r"^```jsx?\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
        bundled(packages, example)


@pytest.mark.parametrize("scene", SCENES)
async def test_hooks_show_the_state_of_the_server(packages: Path, node: str, server: ScriptServer, scene: str) -> None:
    assert json.loads(run(FOLDER, node, "react.mjs", packages, server.url, scene)) == SCENES[scene]

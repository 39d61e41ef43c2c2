"""`python -m tests.node.types` generates the types of the packages from the OpenAPI document and from the modules of
the packages.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import run
from typing import Any

from tests.support.calls import PARTS
from tests.support.model_apis import schemas_by_name
from turnstream.extensions.openapi.document import OpenApi

FOLDER = Path(__file__).parent
WEB = FOLDER.parents[1] / "app/turnstream/web"
_HEADER = "// Made of the schemas of /openapi.json by `make types`: do not edit.\n\n"
# The types of what the client sends, receives and follows.
_ROOTS = (
    "NewTurnInNewChat",
    "TurnOptions",
    "ForkIn",
    "ActionsIn",
    "ExchangeOut",
    "ChatOut",
    "PathPage",
    "ChatPage",
    "WaitingPage",
    "GrantsOut",
)
_STREAMS = ("StreamEvent", "ChatStreamEvent", "FeedEvent")
_OPTIONS = {
    "target": "es2024",
    "lib": ["es2024", "dom", "dom.iterable", "dom.asynciterable"],
    "module": "nodenext",
    "types": [],
    "allowJs": True,
    "checkJs": True,
    "strict": True,
    "skipLibCheck": True,
    "declaration": True,
    "emitDeclarationOnly": True,
    "rootDir": ".",
    "paths": {"@turnstream/client": [f"{WEB}/static/client.d.ts"]},
}


def types() -> Iterator[tuple[Path, str]]:
    """Yields each file with its content. Raises RuntimeError if a module contradicts its own types."""
    yield WEB / "static/schema.d.ts", _of_document()
    yield from _of_modules()  # these files import the first file


def _of_document() -> str:
    document = OpenApi([part for part in PARTS if part.foreign is None], schemas_by_name).document()
    schemas = document["components"]["schemas"]
    rest, reached = [*_ROOTS, *_STREAMS], set()
    while rest:
        name = rest.pop()
        if name not in reached:
            reached.add(name)
            rest += re.findall('"#/components/schemas/(\\w+)"', json.dumps(schemas[name]))
    parts = {"schemas": {name: _untitled(schemas[name]) for name in sorted(reached)}}
    with tempfile.TemporaryDirectory() as folder:
        source, written = Path(folder, "openapi.json"), Path(folder, "schema.d.ts")
        source.write_text(json.dumps({**document, "paths": {}, "components": parts}), encoding="utf-8")
        _run("openapi-typescript", source, "--output", written)
        return _HEADER + written.read_text(encoding="utf-8")


def _of_modules() -> Iterator[tuple[Path, str]]:
    """Generates types from copies of the modules, because the compiler would read the existing types beside a module.
    React and the SDK are in a parent folder.
    """
    with tempfile.TemporaryDirectory(dir=FOLDER / "node_modules") as folder:
        copies = shutil.copytree(WEB / "packages", Path(folder, "packages"), ignore=shutil.ignore_patterns("*.d.ts"))
        config = copies / "tsconfig.json"
        config.write_text(json.dumps({"compilerOptions": _OPTIONS, "include": ["*/*.js"]}), encoding="utf-8")
        (copies / "package.json").write_text('{"type": "module"}', encoding="utf-8")
        _run("tsc", "--project", config)
        for path in sorted(copies.glob("*/*.d.ts")):
            yield WEB / "packages" / path.relative_to(copies), path.read_text(encoding="utf-8")


def _run(program: str, *arguments: str | Path) -> None:
    command = [FOLDER / "node_modules/.bin" / program, *arguments]
    done = run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)


def _untitled(schema: Any) -> Any:
    """Removes titles from the schema, because they only repeat the names of members."""
    if isinstance(schema, list):
        return list(map(_untitled, schema))
    if not isinstance(schema, dict):
        return schema
    return {key: _untitled(value) for key, value in schema.items() if key != "title" or isinstance(value, dict)}


if __name__ == "__main__":
    for path, content in types():
        path.write_text(content, encoding="utf-8")

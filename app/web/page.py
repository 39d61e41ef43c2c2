"""The page at `/`: static files, read and compressed once, under a policy that lets nothing else run."""

import gzip
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from app.web.policy import HEADERS

_FOLDER = Path(__file__).with_name("static")
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_FOR_EVER = "public, max-age=31536000, immutable"
_PLACE_OF_VERSION = b"/static/VERSION/"
_PLACE_OF_PRELOADS = b"<!-- PRELOADS -->"


@dataclass(frozen=True, slots=True)
class StaticFile:
    content: bytes
    packed: bytes
    type: str
    tag: str


@dataclass(frozen=True, slots=True)
class Site:
    """The files by their path. `version` changes whenever one of them does: under it they are kept for ever."""

    files: Mapping[str, StaticFile]
    version: str

    def page(self, request: Request) -> Response:
        return _answer(request, self.files["index.html"], "no-cache")

    def file(self, request: Request) -> Response:
        """`/static/PATH`, or `/static/v-VERSION/PATH`: during a deploy perhaps the version of another replica."""
        version, path = _split(request.path_params["path"])
        file = self.files.get(path)
        if file is None:
            return Response("There is no such file.\n", 404, media_type="text/plain")
        return _answer(request, file, _FOR_EVER if version == self.version else "no-cache")


def page_routes() -> list[Route]:
    site = read_site(_FOLDER)
    return [Route("/", site.page), Route("/static/{path:path}", site.file)]


def read_site(folder: Path) -> Site:
    paths = sorted(path for path in folder.rglob("*") if path.suffix in _TYPES)
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    version = hashlib.sha256(b"\0".join(contents.values())).hexdigest()[:12]
    place = f"/static/v-{version}/".encode()
    index = contents["index.html"].replace(_PLACE_OF_PRELOADS, _preloads(contents))
    contents["index.html"] = index.replace(_PLACE_OF_VERSION, place)
    return Site({path: _file(path, content) for path, content in contents.items()}, version)


def _preloads(paths: Iterable[str]) -> bytes:
    """So that all modules are fetched at once, and not each when the one that imports it has come."""
    modules = [path for path in paths if path.endswith(".js") and path != "theme.js"]
    return "\n".join(f'<link rel="modulepreload" href="/static/VERSION/{path}">' for path in modules).encode()


def _split(path: str) -> tuple[str, str]:
    first, _, rest = path.partition("/")
    return (first.removeprefix("v-"), rest) if first.startswith("v-") else ("", path)


def _file(path: str, content: bytes) -> StaticFile:
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    return StaticFile(content, gzip.compress(content, mtime=0), _TYPES[Path(path).suffix], tag)


def _answer(request: Request, file: StaticFile, caching: str) -> Response:
    headers = {**HEADERS, "Cache-Control": caching, "ETag": file.tag, "Vary": "Accept-Encoding"}
    if file.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    packed = "gzip" in request.headers.get("accept-encoding", "")
    if packed:
        headers["Content-Encoding"] = "gzip"
    return Response(file.packed if packed else file.content, headers=headers, media_type=file.type)

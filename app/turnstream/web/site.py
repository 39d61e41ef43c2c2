"""The pages at `/`, `/admin` and `/shared/…`: static files, read at start, under a policy against foreign code."""

import base64
import functools
import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

_FOLDER = Path(__file__).with_name("static")
_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".ts": "text/plain",  # the types of turnstream.js, for editors and type checkers
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webmanifest": "application/manifest+json",
}
_IMMUTABLE = "public, max-age=31536000, immutable"
# The first is the service worker, the second is no module, the third is large and rarely used.
_FETCHED_LATER = {"offline.js", "theme.js", "vendor/temml.esm.js"}
_VERSION_PLACEHOLDER = b"static/VERSION/"

_CONTENT_SECURITY_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    # Attached images are fetched with the token in a header, then shown from memory as blobs.
    "img-src": "'self' data: blob:",
    "connect-src": "'self'",
    "manifest-src": "'self'",
    "frame-src": "'self'",  # apps of MCP servers, in frames with an opaque origin
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    # Only the sanitiser may turn text into HTML.
    "require-trusted-types-for": "'script'",
    "trusted-types": "dompurify offline",  # and only a constant may name the service worker
}
_HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _CONTENT_SECURITY_POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "geolocation=(self), camera=(), microphone=()",
}


@dataclass(frozen=True)
class StaticFile:
    content: bytes
    media_type: str

    @functools.cached_property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:16]}"'

    @functools.cached_property
    def compressed(self) -> bytes:
        """Compressed at the first request: all files at once would block a start for a quarter of a second."""
        return gzip.compress(self.content, mtime=0)


@dataclass(frozen=True, slots=True)
class Site:
    """The files by path. Pages have relative links, and so work under a prefix. `version` is a hash of all files: a URL
    with it may be cached for ever.
    """

    files: Mapping[str, StaticFile]
    version: str

    def page(self, request: Request) -> Response:
        return _respond(request, self.files["index.html"], "no-cache")

    def operators_page(self, request: Request) -> Response:
        return _respond(request, self.files["admin.html"], "no-cache")

    def offline_worker(self, request: Request) -> Response:
        """The service worker of the page. Its scope is its folder, so its path is beside the page's."""
        return _respond(request, self.files["offline.js"], "no-cache")

    def shared_page(self, request: Request) -> Response:
        return _respond(request, self.files["shared.html"], "no-cache")

    def file(self, request: Request) -> Response:
        """`/static/PATH` or `/static/v-VERSION/PATH`. During a deploy VERSION may be another replica's."""
        path: str = request.path_params["path"]
        first, _, rest = path.partition("/")
        version, path = (first.removeprefix("v-"), rest) if first.startswith("v-") else ("", path)
        file = self.files.get(path)
        if file is None:
            return Response("There is no such file.\n", 404, media_type="text/plain")
        # Under a foreign VERSION the content may not match the URL: it must not be cached for ever.
        return _respond(request, file, _IMMUTABLE if version == self.version else "no-cache")


def site() -> Site:
    return read_site(_FOLDER)


@functools.cache
def read_site(folder: Path) -> Site:
    """The files of a folder, read once per process."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix in _TYPES)
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    version = hashlib.sha256(b"\0".join(contents.values())).hexdigest()[:12]
    contents["index.html"] = contents["index.html"].replace(b"<!-- PRELOADS -->", _preloads(contents))
    for page in ("index.html", "admin.html", "shared.html"):
        contents[page] = contents[page].replace(_VERSION_PLACEHOLDER, f"static/v-{version}/".encode())
    contents["offline.js"] = contents["offline.js"].replace(b"{} // FILES", _digests(contents))
    contents["offline.js"] = contents["offline.js"].replace(_VERSION_PLACEHOLDER, f"static/v-{version}/".encode())
    return Site({path: StaticFile(content, _TYPES[Path(path).suffix]) for path, content in contents.items()}, version)


def _digests(contents: Mapping[str, bytes]) -> bytes:
    """The files of the page at `/`, each with the digest for the browser's check, as JSON."""
    others = ("admin", "shared.", "offline.js")
    return json.dumps(
        {
            f"static/VERSION/{path}": f"sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}"
            for path, content in contents.items()
            if not path.startswith(others) and not path.endswith(".ts")
        }
    ).encode()


def _preloads(paths: Iterable[str]) -> bytes:
    """Links that fetch all modules of the page at `/` at once, instead of one import after another."""
    modules = [
        path
        for path in paths
        if path.endswith(".js") and path not in _FETCHED_LATER and not path.startswith(("admin", "shared"))
    ]
    return "\n".join(f'<link rel="modulepreload" href="static/VERSION/{path}">' for path in modules).encode()


def _respond(request: Request, file: StaticFile, caching: str) -> Response:
    headers = {**_HEADERS, "Cache-Control": caching, "ETag": file.etag, "Vary": "Accept-Encoding"}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    compressed = "gzip" in request.headers.get("accept-encoding", "")
    if compressed:
        headers["Content-Encoding"] = "gzip"
    return Response(file.compressed if compressed else file.content, headers=headers, media_type=file.media_type)

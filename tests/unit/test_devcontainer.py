"""The development container has the versions that the repository requires. The comparison needs no container engine."""

import json
import re
import tomllib
from typing import Any

from tests.support.pages import ROOT

CONTAINER: dict[str, Any] = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))


def _first(pattern: str, file: str) -> str:
    found = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, f"{file} has no {pattern}"
    return found[1]


def test_its_python_is_that_of_the_image_and_of_the_package() -> None:
    version = _first(r"python:(3\.\d+)", ".devcontainer/devcontainer.json")
    assert version == _first(r"^FROM .*python:(3\.\d+)", "Dockerfile")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"].startswith(f">={version}")


def test_its_node_can_check_the_javascript() -> None:
    ((name, feature),) = CONTAINER["features"].items()
    assert name.startswith("ghcr.io/devcontainers/features/node:")
    assert int(feature["version"]) >= int(_first(r"Node (\d+)\.\d+ or newer", "docs/contributing.md"))


def test_its_first_command_is_a_target_and_its_port_is_that_of_the_server() -> None:
    command, target = CONTAINER["postCreateCommand"].split()
    assert command == "make"
    assert _first(rf"^({target}):", "Makefile") == target
    assert f"http://127.0.0.1:{CONTAINER['forwardPorts'][0]}" in (ROOT / "docs/quickstart.md").read_text("utf-8")

"""The wheels, installed without the source tree: `turnstream serve` in an empty folder, the public interface, and the
other distributions.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import pytest

import turnstream
from tests.support.http_client import Client, said
from tests.support.installed import extras, installed, link_dependencies, run, wheel
from tests.support.pages import blocks
from tests.support.server_process import Server, clean_environment

ROOT = Path(__file__).parents[2]
# The folders of the other distributions.
BESIDE = sorted(path.parent for path in ROOT.glob("app/*/pyproject.toml"))
PAGES = sorted(ROOT.glob("docs/**/*.md"))

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment with the server and its locked dependencies, without the source tree."""
    programs = installed(tmp_path_factory.mktemp("package"), ROOT)
    link_dependencies(programs, "turnstream", extras("turnstream"))
    return programs


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment with all other distributions, without the server."""
    programs = installed(tmp_path_factory.mktemp("beside"), *BESIDE)
    for project in BESIDE:
        link_dependencies(programs, project.name)
    return programs


@pytest.fixture(scope="module")
def with_lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment with the server, the lab, and the lab's dependencies in this repository."""
    names = ("turnstream_client", "turnstream_lab", "turnstream_terminal")
    programs = installed(tmp_path_factory.mktemp("lab"), ROOT, *(ROOT / "app" / name for name in names))
    for name in ("turnstream", *names):
        link_dependencies(programs, name)
    return programs


async def test_an_installed_wheel_serves_in_an_empty_folder(environment: Path, tmp_path: Path) -> None:
    class Installed(Server):
        command = (environment / "turnstream", "serve")

    server = Installed("", tmp_path, {})  # an empty DATABASE_URL selects the embedded database
    try:
        await server.start()
        async with Client(server.url) as api:
            answer = await api.json("POST", "/api/turns", 201, json=said("How long does the battery last?"))
            async with api.follow(answer["stream_url"]) as events:
                names = [event.name async for event in events]
        assert names[0] == "turn_start"
        assert names[-1] == "turn_complete"
        assert (tmp_path / ".data").is_dir()
    finally:
        await server.close()


ECHO_PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "turnstream-echo"
version = "1.0"
dependencies = ["turnstream"]

[project.entry-points."turnstream.extensions"]
echo = "echo_models:ECHO"

[tool.hatch.build.targets.wheel]
include = ["echo_models.py"]
"""


async def test_a_package_with_an_api_of_models_of_its_own_is_installed_and_answers(tmp_path: Path) -> None:
    project, folder = tmp_path / "turnstream-echo", tmp_path / "server"
    project.mkdir()
    folder.mkdir()
    (project / "pyproject.toml").write_text(ECHO_PROJECT)
    (code,) = blocks("docs/providers.md", "Another API", "python")
    (project / "echo_models.py").write_text(code)
    (models,) = blocks("docs/providers.md", "Another API", "toml")
    (folder / "models.toml").write_text(models)
    programs = installed(tmp_path, ROOT, project)
    link_dependencies(programs, "turnstream", extras("turnstream"))

    class Installed(Server):
        command = (programs / "turnstream", "serve")

    server = Installed("", folder, {"TURNSTREAM_MODELS_FILE": str(folder / "models.toml")})
    try:
        await server.start()
        async with Client(server.url) as api:
            answer = await api.ask(await api.chat(), "Hello, mountain.", model="alps")
            assert answer.assistant["blocks"][0]["text"] == "Hello, mountain."
    finally:
        await server.close()


def test_the_installed_package_is_not_this_source_tree_and_is_typed(environment: Path, tmp_path: Path) -> None:
    where = run(str(environment / "python"), "-c", "import turnstream; print(turnstream.__file__)", cwd=tmp_path)
    package = Path(where.strip()).parent
    assert not package.is_relative_to(ROOT)
    assert (package / "py.typed").is_file()


@pytest.mark.parametrize("project", [ROOT, *BESIDE], ids=lambda project: project.name)
def test_a_wheel_has_one_package_that_is_typed(project: Path, tmp_path: Path) -> None:
    package = "turnstream" if project == ROOT else project.name
    names = ZipFile(wheel(tmp_path, project)).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {package}
    assert f"{package}/py.typed" in names


def test_a_server_without_clients_lists_its_commands_and_names_the_missing_distribution(
    environment: Path, tmp_path: Path
) -> None:
    listed = run(str(environment / "turnstream"), "--help", cwd=tmp_path)
    assert "conformance  Not installed: needs turnstream-conformance." in listed
    refused = subprocess.run(
        [environment / "turnstream", "chat", "Hello"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("turnstream: `turnstream chat` needs the distribution turnstream-")


def test_the_lab_adds_its_commands_and_settings_to_the_server(
    environment: Path, with_lab: Path, tmp_path: Path
) -> None:
    recording = {"TURNSTREAM_RECORD": "recordings"}
    refused = doctor(environment, tmp_path, recording)
    assert refused.returncode == 1
    assert "TURNSTREAM_RECORD is not a setting; " in refused.stdout
    assert "replay" not in run(str(environment / "turnstream"), "--help", cwd=tmp_path)
    accepted = doctor(with_lab, tmp_path, recording)
    assert "jwt, key_service, keys, lab, " in accepted.stdout
    for command in ("compare", "replay"):
        printed = run(str(with_lab / "turnstream"), command, "--help", cwd=tmp_path)
        assert printed.startswith(f"Usage: turnstream {command} ")


def doctor(programs: Path, folder: Path, settings: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [programs / "turnstream", "doctor"],
        cwd=folder,
        env=clean_environment() | {**settings},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_other_distributions_run_without_the_server(beside: Path, tmp_path: Path) -> None:
    for command in ("turnstream-chat", "turnstream-conformance"):
        assert run(str(beside / command), "--help", cwd=tmp_path).startswith(f"Usage: {command} ")
    found = "import importlib.util as i; print(i.find_spec('turnstream'))"
    assert run(str(beside / "python"), "-c", found, cwd=tmp_path) == "None\n"


def _names_for_type_checkers() -> dict[str, str]:
    tree = ast.parse((ROOT / "app/turnstream/__init__.py").read_text(encoding="utf-8"))
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in guarded.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or "": node.module or "" for node in imports for alias in node.names}


def test_type_checkers_and_programs_see_the_same_public_names() -> None:
    assert sorted(_names_for_type_checkers()) == sorted(turnstream.__all__)
    for name, module in _names_for_type_checkers().items():
        assert getattr(turnstream, name) is getattr(sys.modules[module], name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(turnstream, "nothing")  # noqa: B009, as a program that misspells a name
    assert set(turnstream.__all__) <= set(dir(turnstream))


def test_the_pages_import_public_names_only() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert re.findall(r"^ *(?:from|import) turnstream\.\S+.*$", text, re.MULTILINE) == [], page
        imported = {
            name.strip()
            for names in re.findall(r"^ *from turnstream import (.+)$", text, re.MULTILINE)
            for name in names.split(",")
        }
        assert imported <= set(turnstream.__all__), page


def test_importing_the_package_loads_no_server() -> None:
    loaded = run(sys.executable, "-c", "import turnstream, sys; print('starlette' in sys.modules)", cwd=ROOT)
    assert loaded.strip() == "False"

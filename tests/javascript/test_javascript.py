"""The unit tests of the page's modules, run by Node, and their types beside the schemas of the server."""

import subprocess
from pathlib import Path

import pytest

from tests.support.programs import path_of

FOLDER = Path(__file__).parent


@pytest.mark.needs("Node")
def test_the_unit_tests_of_the_modules_pass_in_node() -> None:
    files = sorted(path.name for path in FOLDER.glob("*.test.js"))
    command = [path_of("Node"), "--test", *files]
    run = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=150, check=False)
    assert run.returncode == 0, run.stdout + run.stderr

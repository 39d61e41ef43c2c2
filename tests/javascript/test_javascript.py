"""The unit tests of the page's modules, run by Node."""

import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def test_the_unit_tests_of_the_modules_pass_in_node() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.fail("this test needs Node 20 or newer: `apt-get install nodejs`, or https://nodejs.org", pytrace=False)
    files = sorted(path.name for path in FOLDER.glob("*.test.js"))
    run = subprocess.run([node, "--test", *files], cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stdout + run.stderr

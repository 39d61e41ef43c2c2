import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_first_example_prints_the_documented_text(tmp_path: Path) -> None:
    page = (ROOT / "docs/tools.md").read_text(encoding="utf-8")
    code, printed = re.findall(r"^```(?:python|text)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[:2]
    example = tmp_path / "example.py"
    example.write_text(code, encoding="utf-8")
    run = subprocess.run([sys.executable, example], cwd=ROOT, capture_output=True, text=True, check=False)
    results = [line for line in run.stdout.splitlines() if "tool.settled" not in line]
    assert (run.returncode, results) == (0, printed.splitlines()), run.stderr

"""Compiles the provider and the load generator, which are C programs because of their low overhead."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent / "native"
BUILT = ROOT / ".reports" / "bench"


class NoCompilerError(Exception):
    pass


def built(name: str) -> Path:
    binary = BUILT / name
    if not binary.exists() or binary.stat().st_mtime < newest_source():
        compile_to(binary, SOURCES / f"{name}.c")
    return binary


def newest_source() -> float:
    return max(source.stat().st_mtime for source in SOURCES.iterdir())


def compile_to(binary: Path, source: Path, *options: str) -> None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise NoCompilerError("the benchmark tools need a C compiler (cc, or the one that CC names)")
    binary.parent.mkdir(parents=True, exist_ok=True)
    unfinished = binary.with_suffix(f".{os.getpid()}")  # two test workers may compile at the same time
    options = ("-O2", "-Wall", "-Wextra", "-Wno-format-truncation", *options)
    subprocess.run([compiler, *options, "-o", str(unfinished), str(source)], check=True)
    unfinished.replace(binary)

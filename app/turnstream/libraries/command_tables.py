"""Tables that commands print."""

import sys
from collections.abc import Iterable, Sequence

import click


def print_table(lines: Iterable[Sequence[str]]) -> None:
    """Prints lines of equally many cells: in aligned columns to a terminal, with tabs between them to anything else."""
    for line in aligned([*lines]) if sys.stdout.isatty() else map("\t".join, lines):
        click.echo(line.rstrip())


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)) for line in lines]

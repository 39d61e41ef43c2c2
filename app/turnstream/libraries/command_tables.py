"""Tables in the output of commands."""

import sys
from collections.abc import Iterable, Sequence

import click


def print_table(lines: Iterable[Sequence[str]]) -> None:
    """Prints rows with the same number of cells: in aligned columns on a terminal, otherwise separated by tabs."""
    for line in aligned([*lines]) if sys.stdout.isatty() else map("\t".join, lines):
        click.echo(line.rstrip())


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)) for line in lines]

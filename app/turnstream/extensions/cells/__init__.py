"""Cells: several Postgres databases, each with its replicas and some of the owners. An owner can move between cells."""

from pydantic import Field

from turnstream.config import Section, Settings
from turnstream.extension import Context, Extension, Work


class CellSettings(Section):
    cell: str | None = Field(
        None,
        pattern=r"^[a-z0-9]{1,8}$",
        description="name of the [cell](scaling.md#cells) of this server, a part of its tokens",
    )


def cell_name(settings: Settings) -> str | None:
    return settings.section(CellSettings).cell


def _work(context: Context) -> Work:
    from turnstream.extensions.cells.cell import Cell
    from turnstream.extensions.cells.moves import Moves

    if (name := cell_name(context.settings)) is None:
        return Work()
    cell = Cell(name, Moves(context.database), context.release)
    return Work(tasks=(cell.follow,), admit=cell.admit, state=cell)


EXTENSION = Extension(
    "cells",
    "owners on several databases, and their moves",
    settings=CellSettings,
    work=_work,
    cell=cell_name,
    commands={"owners move": "turnstream.extensions.cells.command"},
)

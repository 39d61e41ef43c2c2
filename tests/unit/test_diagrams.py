"""The diagrams are generated from the code, and every name in a diagram exists."""

import re
from xml.etree import ElementTree as ET

import pytest

from tests.support.diagrams import DIAGRAMS, FOLDER, PAGE, ROOT, STAGES
from tests.support.pages import PAGES
from turnstream.domain.plans import KEPT, MEASURES

STATIC = ROOT / "app/turnstream/web/static"


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_diagram_is_drawn_from_the_code(name: str) -> None:
    drawn = (FOLDER / name).read_text(encoding="utf-8")
    assert drawn == DIAGRAMS[name](), "run `make reference`"
    ET.fromstring(drawn)


def test_each_diagram_is_on_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [path.name for path in FOLDER.iterdir() if f"diagrams/{path.name})" not in text] == []


def test_each_limit_of_a_plan_has_its_place() -> None:
    assert sorted(each for stage in STAGES for each in stage.measures) == sorted([*MEASURES, *KEPT])


def test_the_parts_of_the_page_and_their_modules_exist() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert [part.element for part in PAGE if f'id="{part.element}"' not in page] == []
    modules = {name for part in PAGE for name in re.findall(r"[\w-]+\.js", part.modules)}
    assert [name for name in modules if not (STATIC / name).is_file()] == []

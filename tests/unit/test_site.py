"""The site of the documentation: its pages, and the errors that stop its build."""

from pathlib import Path

import pytest

from tests.support.pages import PAGES, ROOT
from tests.support.site import copy_pages, index_for_models, kinds, render


def test_the_site_has_every_page_once() -> None:
    pages = [page for each in kinds().values() for page in each]
    assert len(pages) == len(set(pages))
    assert set(PAGES) - set(pages) == {ROOT / "README.md"}


def test_each_link_of_the_copied_pages_leads_to_a_copied_file(tmp_path: Path) -> None:
    copy_pages(tmp_path)
    assert (tmp_path / "docs/deploy/nginx.conf").is_file()
    assert "(../index.md)" not in (tmp_path / "index.md").read_text(encoding="utf-8")
    assert "(docs/quickstart.md)" in (tmp_path / "index.md").read_text(encoding="utf-8")


def test_the_index_for_models_has_every_page_with_its_first_sentence() -> None:
    lines = [line for line in index_for_models().splitlines() if line.startswith("- ")]
    assert len(lines) == sum(map(len, kinds().values()))
    assert [line for line in lines if not line.rpartition(".md): ")[2]] == []


@pytest.mark.filterwarnings("ignore::sphinx.deprecation.RemovedInSphinx11Warning")  # myst-parser causes this warning
@pytest.mark.parametrize(
    ("link", "is_right"), [("other.md#a-heading", True), ("other.md#no-heading", False), ("none.md", False)]
)
def test_a_link_that_leads_nowhere_stops_the_build(
    link: str, is_right: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "index.md").write_text(f"# First\n\n[A link]({link}).\n\n```{{toctree}}\nother.md\n```\n")
    (source / "other.md").write_text("# Other\n\n## A heading\n\nText.\n")
    if is_right:
        render(source, tmp_path / "html")
        assert "A heading" in (tmp_path / "html/other.html").read_text(encoding="utf-8")
    else:
        with pytest.raises(SystemExit, match="not built"):
            render(source, tmp_path / "html")
        assert link.partition(".")[0] in capsys.readouterr().err

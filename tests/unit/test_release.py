"""The checks that run before a release is built. `tests/acceptance/test_release.py` builds a release."""

import json
import re
import tomllib

import pytest
from trove_classifiers import classifiers

from tests.support.pages import ROOT
from tests.support.release import PROJECTS, bill_of_materials, check_tag, version_of, versions

CHANGELOG = (ROOT / "docs/changelog.md").read_text(encoding="utf-8")
RELEASED = "# Changelog\n\n## 1.2.0 (2026-11-27)\n\nText.\n"


def test_all_distributions_and_packages_have_one_version_which_the_changelog_names() -> None:
    found = versions()
    assert len(found) == 10
    assert f"\n## Unreleased ({version_of(found)})\n" in CHANGELOG or f"\n## {version_of(found)} (" in CHANGELOG


def test_files_with_different_versions_are_named() -> None:
    with pytest.raises(SystemExit, match=r"more than one version:\n  1\.0  a\n  1\.1  b"):
        version_of({"a": "1.0", "b": "1.1"})


def test_a_commit_without_a_tag_is_built_for_a_trial_and_a_released_one_as_it_is() -> None:
    check_tag("1.2.0", None, " M file", "")
    check_tag("1.2.0", "v1.2.0", "", RELEASED)


@pytest.mark.parametrize(
    ("tag", "changed", "changelog", "reason"),
    [
        ("v1.1.0", "", RELEASED, "has the tag v1.1.0, but the version is 1.2.0"),
        ("v1.2.0", " M README.md", RELEASED, "changes that are not committed:\n M README.md"),
        ("v1.2.0", "", "# Changelog\n\n## Unreleased (1.2.0)\n", r"no heading `## 1.2.0 \(YYYY-MM-DD\)`"),
    ],
)
def test_a_release_is_refused_with_the_reason(tag: str, changed: str, changelog: str, reason: str) -> None:
    with pytest.raises(SystemExit, match=reason):
        check_tag("1.2.0", tag, changed, changelog)


def test_the_lock_of_the_server_has_no_build_tools() -> None:
    pinned = [
        re.findall(r"^([\w.-]+)==", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
        for name in ("requirements.lock", "requirements-build.lock")
    ]
    assert set(pinned[0]) & set(pinned[1]) == set()
    assert "hatchling" in pinned[1]


def test_every_distribution_names_the_same_versions_of_python_and_known_classifiers() -> None:
    of_python = []
    for project in PROJECTS:
        about = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert sorted(about["classifiers"]) == about["classifiers"]
        assert set(about["classifiers"]) - {"Private :: Do Not Upload"} <= classifiers
        of_python.append([each for each in about["classifiers"] if each.startswith("Programming Language")])
    assert of_python == [of_python[0]] * len(PROJECTS)


def test_the_bill_of_materials_has_every_pinned_package_and_the_libraries_of_the_page() -> None:
    bill = json.loads(bill_of_materials())
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pinned = {line.split("==")[0].split("[")[0] for line in lock.splitlines() if "==" in line and line[0].isalnum()}
    named = {component["name"] for component in bill["components"]}
    assert pinned | {"marked", "dompurify", "temml"} == named
    refs = {component["bom-ref"] for component in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    assert {dependency["ref"] for dependency in bill["dependencies"]} == refs

"""The examples in docs/models.md are true."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.model_apis import providers_of
from turnstream import main
from turnstream.api.schemas.requests import NewTurn
from turnstream.domain.turns import OutputSpec
from turnstream.tools.outputs import Outputs

PAGE = (Path(__file__).parents[2] / "docs/models.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found


def test_the_file_of_models_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    (text,) = blocks("toml")
    file.write_text(text)
    found = {spec.name: spec for spec in providers_of(file, {"ANTHROPIC_API_KEY": "a", "OPENROUTER_API_KEY": "b"})}
    assert found["local"].models[0].upstream == "meta-llama/Llama-4"
    assert found["openrouter"].key == "b"
    assert "claude-opus-4-5" not in {model.id for model in found["anthropic"].models}


@pytest.mark.parametrize("body", blocks("json"))
def test_the_bodies_are_accepted(body: str) -> None:
    whole = body.replace("iVBORw0KGgo…", "iVBORw0KGgo=").replace("01a2…", "01a20000-0000-7000-8000-000000000000")
    assert NewTurn.model_validate_json(whole).blocks


async def test_validators_and_handlers_are_registered_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(main, "create_app", lambda settings, **more: given.update(more))
    (program,) = blocks("python")
    exec(compile(program, "docs/models.md", "exec"), {})
    outputs = given["outputs"]
    assert isinstance(outputs, Outputs)
    outputs.check(OutputSpec('{"type":"object"}', "plausible", "critic"))
    assert outputs.validators["plausible"]({"year": 3000}) == "that year is in the future"
    assert await outputs.handlers["critic"]({}, None) == "Name your source."  # type: ignore[arg-type]

"""The registry of models: the shipped file, and the operator's own file."""

import json
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.model_apis import providers_of
from turnstream.domain.errors import ConfigError
from turnstream.domain.rounds import Prices
from turnstream.extensions.openai.chat.render import render
from turnstream.extensions.openai.quirks import quirks_of
from turnstream.llm.models.api import ProviderSpec
from turnstream.llm.models.catalog import Model
from turnstream.llm.provider import ModelRequest

KEYS = {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "b"}


def read(folder: Path, text: str, **environment: str) -> dict[str, ProviderSpec]:
    file = folder / "models.toml"
    file.write_text(text)
    return {spec.name: spec for spec in providers_of(file, environment)}


def model_of(spec: ProviderSpec, id: str) -> Model:
    return next(model for model in spec.models if model.id == id)


def test_a_provider_without_its_key_is_left_out() -> None:
    assert providers_of(None, {}) == []
    assert [spec.name for spec in providers_of(None, {"ANTHROPIC_API_KEY": "a"})] == ["anthropic"]
    assert [spec.name for spec in providers_of(None, KEYS)] == ["anthropic", "openai"]


def test_our_own_file_knows_the_models_of_a_family() -> None:
    (spec,) = providers_of(None, {"ANTHROPIC_API_KEY": "a", "ANTHROPIC_BASE_URL": "http://gateway"})
    assert (spec.key, spec.base_url, spec.prefixes) == ("a", "http://gateway", ("claude-",))
    model = model_of(spec, "claude-sonnet-5-5")
    assert model.context_window == 200_000
    assert model.supports("tools")


def test_the_operator_says_more_of_a_model_adds_others_and_takes_some_out(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        currency = "EUR"

        [providers.local]
        api = "openai-chat"
        base_url = "http://${HOST}:8001/v1"
        quirks = "compatible"
        headers = { X-Team = "$TEAM" }

        [models.claude-sonnet-5-5]
        aliases = ["sonnet"]
        fallbacks = ["claude-haiku-5-5"]
        prices = { input = 3.0, output = 15.0 }

        [models.claude-opus-5-5]
        enabled = false

        [families.llama]
        provider = "local"
        can = ["tools"]
        models = ["llama-8", "llama-70"]

        [models.llama-70]
        context_window = 8000
        upstream = "meta/llama-70"
        """,
        ANTHROPIC_API_KEY="a",
        HOST="gpu",
        TEAM="blue",
    )
    local = found["local"]
    assert (local.key, local.base_url, local.quirks) == (None, "http://gpu:8001/v1", "compatible")
    assert local.headers == {"X-Team": "blue"}
    assert local.models == (
        Model("llama-8", can=frozenset({"tools"})),
        Model("llama-70", "meta/llama-70", context_window=8000, can=frozenset({"tools"})),
    )
    sonnet = model_of(found["anthropic"], "claude-sonnet-5-5")
    assert (sonnet.context_window, sonnet.prices, sonnet.currency) == (200_000, Prices(3.0, 15.0), "EUR")
    assert (sonnet.aliases, sonnet.fallbacks) == (("sonnet",), ("claude-haiku-5-5",))
    assert "claude-opus-5-5" not in {model.id for model in found["anthropic"].models}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x =", "models.toml is not TOML: "),
        (
            "[models.m]\nprovider = 'nobody'",
            r"`provider` of \[models.m\] must be one of .*: there is no \[providers.nobody\]\.$",
        ),
        (
            "[models.m]\nprovider = 'openai'\nfallbacks = ['n']",
            r"`fallbacks` of \[models.m\] must be ids of models: there is no \[models.n\]\.$",
        ),
        (
            "[models.m]\nprovider = 'openai'\naliases = ['claude-opus-5']",
            r"`aliases` of \[models.m\] must be new names: claude-opus-5 is \[models.claude-opus-5\]\.$",
        ),
        (
            "[models.m]\nprovider = 'openai'\ncan = ['fly']",
            r"`can.0` of \[models.m\] must be 'tools', 'parallel_tools', .* or 'compaction'\.$",
        ),
        (
            "[models.m]\nprovider = 'openai'\nwindow = 1",
            r"`window` of \[models.m\] is not known; known keys are provider, upstream, context_window, ",
        ),
        (
            "[providers.p]\napi = 'openai-responses'\n[models.m]\nprovider = 'p'\nprefill = true",
            r"`prefill` of \[models.m\] must be left out: openai-responses does not continue an answer\.$",
        ),
        (
            "[providers.p]\napi = 'anthropic'\n[models.m]\nprovider = 'p'\nthink_tags = true",
            r"`think_tags` of \[models.m\] must be left out: anthropic sends thoughts as blocks\.$",
        ),
        ("[models.m]\ncan = []", r"`provider` of \[models.m\] is required\.$"),
        (
            "colour = 'red'",
            r"`colour` is not known here; known tables are \[providers\], \[models\] and \[families\]\.$",
        ),
        (
            "[providers.openai]\nquirks = 'odd'",
            r"`quirks` of \[providers.openai\] must be one of openai, compatible, .*, not 'odd'\.$",
        ),
        (
            "[models.m]\nprovider = 'openai'\nprices = {input = 1, output = 1, tax = 1}",
            r"`prices.tax` of \[models.m\] is not known; known keys are input, output, cache_read, cache_write\.$",
        ),
        ("[providers.p]\nkind = 1", r"`api` of \[providers.p\] is required\.$"),
        (
            "[providers.p]\napi = 'soap'",
            r"`api` of \[providers.p\] must be one of anthropic, .*demo, .*openai-chat, openai-responses, openai-emb",
        ),
        (
            "[providers.openai]\nparams = ['temperature']",
            r"`params` of \[providers.openai\] must be further parameters: temperature is one already\.$",
        ),
        (
            "[providers.anthropic]\nparams = ['top_k']",
            r"`params` of \[providers.anthropic\] must be further parameters: top_k is one already\.$",
        ),
        (
            "[providers.openai]\nparams = ['messages']",
            r"`params` of \[providers.openai\] must be further parameters: messages is set by this server\.$",
        ),
        (
            "[providers.demo]\nparams = ['x']",
            r"`params` of \[providers.demo\] must be left out: this API accepts only its own parameters\.$",
        ),
        (
            "[models.m]\nprovider = 'openai'\nrefuses = ['heat']",
            r"`refuses` of \[models.m\] must name parameters of \[providers.openai\] \(.*seed.*\), not 'heat'\.$",
        ),
        (
            "[providers.openai]\nenabled = 3",
            r"`enabled` of \[providers.openai\] must be true or false\.$",
        ),
    ],
)
def test_a_wrong_file_stops_the_start_with_a_sentence(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read(tmp_path, text, **KEYS)


def test_the_operator_adds_parameters_of_a_server_and_takes_some_from_a_model(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        [providers.local]
        api = "openai-chat"
        quirks = "compatible"
        params = ["top_a", "mirostat"]
        [models.m]
        provider = "local"
        refuses = ["seed"]
        """,
    )["local"]
    assert {"top_a", "mirostat", "top_k", "seed"} <= {parameter.name for parameter in found.parameters}
    assert model_of(found, "m").refuses == {"seed"}
    request = ModelRequest("m", (), params={"top_a": 0.1, "mirostat": {"tau": 5}, "unheard_of": 1})
    body = json.loads(render(request, quirks_of(found.quirks, found.params)))
    assert (body["top_a"], body["mirostat"]) == (0.1, {"tau": 5})
    assert "unheard_of" not in body


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"TURNSTREAM_MODELS_FILE: .*nowhere\.toml cannot be read: No such file"):
        providers_of(tmp_path / "nowhere.toml", {})


def test_a_provider_can_be_taken_out(tmp_path: Path) -> None:
    assert "openai" not in read(tmp_path, "[providers.openai]\nenabled = false", **KEYS)


@pytest.mark.parametrize(
    ("written", "shown"), [("gpu:8001", ""), ("$WHERE", r" \(\$WHERE\)")], ids=["in the file", "in a variable"]
)
def test_a_base_url_is_checked_at_the_start(tmp_path: Path, written: str, shown: str) -> None:
    table = f'[providers.local]\napi = "openai-chat"\nbase_url = "{written}"\n'
    with pytest.raises(ConfigError, match=rf"`base_url` of \[providers.local\]{shown} must be a URL, such as https"):
        read(tmp_path, table, WHERE="nowhere")


def test_a_client_certificate_is_checked_at_the_start(tmp_path: Path) -> None:
    table = '[providers.local]\napi = "openai-chat"\nclient_certificate = "$FOLDER/ours.pem"\n'
    with pytest.raises(ConfigError, match=r"`client_certificate` of \[providers.local\] must be a PEM file"):
        read(tmp_path, table, FOLDER=str(tmp_path))
    issued = Authority(tmp_path).issue("127.0.0.1").rename(tmp_path / "ours.pem")
    assert read(tmp_path, table, FOLDER=str(tmp_path))["local"].client_certificate == str(issued)

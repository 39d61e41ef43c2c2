"""A client that openapi-python-client generates from the OpenAPI document works with the server."""

import asyncio
import importlib
import json
import re
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

from tests.support.http_client import Client, Parser
from tests.support.http_server import Server
from tests.support.openapi_document import Document
from tests.support.pictures import PIXEL

pytestmark = pytest.mark.asyncio(loop_scope="session")

NAME = "turnstream_generated"
# As docs/api.md says, the server detects the type of an upload from its content.
CONFIG = """
post_hooks: []
content_type_overrides:
  "*/*": application/octet-stream
"""


@pytest.fixture(scope="module")
def generated(document: Document, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Generates the package, and adds its folder to the import path. Returns the folder."""
    folder = tmp_path_factory.mktemp("generated")
    source, config = folder / "openapi.json", folder / "config.yaml"
    source.write_text(json.dumps(document.json), encoding="utf-8")
    config.write_text(CONFIG, encoding="utf-8")
    options: list[str | Path] = ["--path", source, "--config", config, "--meta", "none", "--output-path", folder / NAME]
    done = run(
        [sys.executable, "-m", "openapi_python_client", "generate", *options],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(folder))
    yield folder / NAME
    sys.path.remove(str(folder))


def module_of(path: str) -> Any:
    return importlib.import_module(f"{NAME}.{path}")


async def test_a_generated_client_has_every_call_under_its_tag(document: Document, generated: Path) -> None:
    operations = [operation for item in document.json["paths"].values() for operation in item.values()]
    assert {tag for operation in operations for tag in operation["tags"]} == {
        tag["name"] for tag in document.json["tags"]
    }
    for operation in operations:
        (tag,) = operation["tags"]
        folder = re.sub("[ -]|(?<=[a-z])(?=[A-Z])", "_", tag).lower()
        assert (generated / "api" / folder / f"{operation['operationId']}.py").exists()
    for path in generated.rglob("*.py"):
        importlib.import_module(".".join(path.relative_to(generated.parent).with_suffix("").parts))


async def test_a_generated_client_posts_follows_and_reads(
    server: Server, api: Client, document: Document, generated: Path
) -> None:
    models, token = module_of("models"), await server.token(api.owner)
    options = {"token": token, "httpx_args": {"trust_env": False}}
    with module_of("client").AuthenticatedClient(base_url=server.url, **options) as client:

        async def call(operation: str, *ids: object, **body: object) -> Any:
            """Runs a call in a thread, because the generated asyncio functions cannot send files."""
            return await asyncio.to_thread(module_of(f"api.{operation}").sync, *ids, client=client, **body)

        message = models.NewTurnInNewChat(blocks=[models.TextBlockIn(type_="text", text="Hi")])
        answer = (await call("turns.create_turn_in_new_chat", body=message)).assistant_turn
        stream = await call("streams.stream_turn", answer.chat_id, answer.id)
        frames = document.json["components"]["schemas"]["StreamEvent"]["discriminator"]["mapping"]
        names = []
        for event in Parser().feed(stream.encode()):
            frame = getattr(models, frames[event.name].rpartition("/")[2])
            sent = {"event": event.name, "data": event.data} | ({"id": event.id} if event.id else {})
            assert frame.from_dict(sent).to_dict() == sent
            names.append(event.name)
        assert (names[0], names[-1]) == ("turn_start", "turn_complete")

        turn = await call("turns.get_turn", answer.chat_id, answer.id)
        assert (turn.status, [block.text for block in turn.blocks]) == ("complete", ["Hello."])
        assert [chat.id for chat in (await call("chats.list_chats")).chats] == [answer.chat_id]

        file, note = (module_of("types").File(BytesIO(content)) for content in (PIXEL, "höher".encode()))
        upload = await call("uploads.put_upload", body=file)
        assert (await call("uploads.get_upload", upload.id)).payload.read() == PIXEL
        await call("documents.put_document", "notes/a.md", body=note)
        assert await call("documents.get_document", "notes/a.md") == "höher"
        problem = await call("documents.get_document", "notes/b.md")
        assert (problem.status, problem.detail) == (404, "There is no document notes/b.md.")

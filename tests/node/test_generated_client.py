"""A client with the types that openapi-typescript generates from the OpenAPI document, against the server."""

import json
import shutil
from subprocess import run

import httpx2
import pytest

from tests.node.conftest import FOLDER, ScriptServer

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]  # npm may need time to install

# The folder is within the folder of the packages, so that Node finds them.
GENERATED = FOLDER / "node_modules" / ".generated"
STRICT = ["--strict", "--module", "nodenext", "--target", "es2023", "--lib", "es2023,dom", "--skipLibCheck"]


async def test_a_client_with_generated_types_posts_follows_and_reads(node: str, server: ScriptServer) -> None:
    shutil.rmtree(GENERATED, ignore_errors=True)
    GENERATED.mkdir()
    async with httpx2.AsyncClient(base_url=server.url, trust_env=False) as client:
        (GENERATED / "openapi.json").write_bytes((await client.get("/openapi.json")).content)
    shutil.copy(FOLDER / "generated.mts", GENERATED)
    types = ["openapi-typescript", "openapi.json", "--output", "api.d.ts"]
    for program, *options in (types, ["tsc", *STRICT, "generated.mts"]):
        command = [str(FOLDER / "node_modules/.bin" / program), *options]
        done = run(command, cwd=GENERATED, capture_output=True, text=True, timeout=150, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    done = run(
        [node, "generated.mjs", server.url], cwd=GENERATED, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    found = {"assembled": True, "failed": 1, "last": "That is it.", "status": "complete", "refused": 404}
    assert json.loads(done.stdout) == found

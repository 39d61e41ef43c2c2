"""Standard output and error lead to a full device, a closed pipe, or a pipe that nobody reads. The server continues to
serve.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.faults.fifty_turns import begin
from tests.faults.model import Call, Gate, Step, Use, model_api
from tests.faults.replicas import ROOT, Replica
from tests.support.http_client import Client, turn_url
from tests.support.load import slowdown
from tests.support.reading import Reader

pytestmark = pytest.mark.timeout(240)

TURNS = 12
NOISE = 200_000  # characters that each run of the tool prints and logs; all runs together exceed the limit

# For each sink: the shell's commands before it becomes the server, and whether the server drops lines. A closed output
# gets no lines, so none are dropped.
SINKS = {
    "a full device": ("exec >/dev/full 2>&1", True),
    "a pipe whose reader has ended": ("mkfifo pipe-$$; exec 3<>pipe-$$ >pipe-$$ 2>&1; exec 3>&-", True),
    "a pipe that nobody reads": ("mkfifo pipe-$$; exec 3<>pipe-$$ >pipe-$$ 2>&1", True),
    "closed": ("exec >&- 2>&-", False),
}


class Redirected(Replica):
    redirection = ""

    async def start(self, **settings: str) -> None:
        shell = ("/bin/sh", "-c", f'{self.redirection}; exec "$@"', "sh")
        self.command = (*shell, *Replica.command)
        await super().start(**settings)


def script(call: Call) -> Iterable[Step]:
    if call.rounds == 0:
        return ("I act: ", Use("act", {"word": call.words}))
    return ("It is ", Gate("middle"), "done.")


async def dropped(client: Client) -> float:
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    samples = {sample.name: sample.value for family in families for sample in family.samples}
    return samples["turnstream_log_lines_dropped_total"]


@pytest.mark.full
@pytest.mark.parametrize("sink", SINKS)
async def test_turns_run_and_are_taken_over_and_a_server_starts_whatever_its_output_leads_to(
    database_url: str, tmp_path: Path, sink: str
) -> None:
    redirection, drops = SINKS[sink]
    async with model_api(script) as model:
        model.open("effect")
        settings = {
            "ANTHROPIC_API_KEY": "none",
            "ANTHROPIC_BASE_URL": model.url,
            "FAULTS_NOISE": str(NOISE),
            "PYTHONPATH": str(ROOT),
            "TURNSTREAM_LEASE": str(2 * slowdown()),
        }
        replicas = [Redirected(database_url, tmp_path, settings) for _ in range(2)]
        one, other = replicas
        try:
            for replica in replicas:
                replica.redirection = redirection
                await replica.start()
            async with Client(one.url) as client, Client(other.url) as elsewhere:
                turns = [await begin(client, f"turn {number}") for number in range(TURNS)]
                await model.until_reached("middle", TURNS)
                assert (await dropped(client) + await dropped(elsewhere) > 0) == drops
                await one.kill()
                await model.until_reached("middle", TURNS + 1)  # a turn is taken over
                model.open("middle")
                readers = [Reader(elsewhere, f"{turn_url(turn)}/stream") for turn in turns]
                await asyncio.gather(*(reader.follow() for reader in readers))
                for reader, turn in zip(readers, turns, strict=True):
                    reader.check_whole(await elsewhere.json("GET", turn_url(turn)))
                    assert reader.text() == "I act: It is done."
            await one.start()
            async with Client(one.url) as client:
                reader = Reader(client, f"{turn_url(await begin(client, 'one more'))}/stream")
                await reader.follow()
                assert reader.turn.end == "turn_complete"
            assert set(model.effects.values()) == {1}
            assert [await replica.terminate() for replica in replicas] == [0, 0]
        finally:
            for replica in replicas:
                await replica.close()

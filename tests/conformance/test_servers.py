"""The kit detects each defect of a small server: the report has a failed line for the promise that the defect
violates.
"""

import asyncio

import httpx2
import pytest

from tests.conformance.small_server import TOKEN, small_server
from turnstream_conformance.server import MESSAGE, ServerChecks, examine

CUTS = "cuts while a turn runs lose nothing, and repeat nothing"
WORDS = "turns side by side have their own words"
READERS = "readers at once, and those that join late, miss nothing"
IDS = "ids grow, over all connections"
CURSORS = "the id of any event stays valid"
LEFT = "after the last event nothing is left"
FIRST = "the first bytes come at once"
COMMENTS = "a silent stream is kept alive by comments"
JSON = "JSON goes on as a stream"
HEADERS = "headers keep proxies from holding events back"
STOPPED = "a turn that is stopped ends its stream"
DELETED = "a chat that is deleted is not found"
ORDER = "events come in order, one end comes last"
OFFSETS = "offsets count code points"
NOTICES = "notices have no id, and events have one"
ALONE = "a turn goes on without readers"
POSTED = "a POST may answer with the stream, and be repeated"
REFUSED = "streams that cannot be are refused"
ONCE = "posts with one key have one effect"
BUSY = "a message to a busy branch is refused"
CHAT = "the stream of a chat has its turns, from any cursor"
PAGE = "a page of turns goes on as a stream"
CHAT_REFUSED = "streams of chats that cannot be are refused"
FEED = "the feed sends what becomes of chats and turns"
FEED_REFUSED = "a feed from what is no cursor is refused"
CALL = "a call in the background has one result, whatever the cuts"

# For each defect: the promise whose line fails, and a part of the text of that line.
DEFECTS = [
    ("rows lack the last word", CUTS, "`text` of block 0 is"),
    ("rows are not what was sent", CUTS, "`text` of block 0 is"),
    ("an event is left out after each cut", CUTS, "was answered with 204"),
    ("an event is sent again after each cut", CUTS, "The events do not fit"),
    ("after a cut only the future is sent", CUTS, ""),
    ("the cursor of a turn is ignored", CUTS, "had no new event"),
    ("a delta is not sent", CUTS, "The events do not fit"),
    ("words are sent twice", CUTS, "The events do not fit"),
    ("the last event is not sent, and the stream ends", CUTS, "was answered with 204"),
    ("the last event is never sent", CUTS, "did not answer"),
    ("a stream does not end", ORDER, "did not answer"),
    ("words are lost", WORDS, "In the answer to message 0"),
    ("words are swapped", WORDS, "In the answer to message 0"),
    ("words are of another chat", WORDS, "In the answer to message 0"),
    ("events between replay and live are lost", READERS, "The events do not fit"),
    ("readers share the events", READERS, ""),
    ("ids fall", IDS, "each must be larger"),
    ("ids of ten events sort as text", IDS, "each must be larger"),
    ("ids are no numbers", IDS, "is not numbers with hyphens"),
    ("cursors expire with the turn", CURSORS, "was answered with 410"),
    ("after the end an empty stream comes", LEFT, "200, not 204"),
    ("the JSON has no cursor", LEFT, "(KeyError): 'cursor'"),
    ("all is sent at the end", FIRST, "before its fourth event"),
    ("all but the first event is sent at the end", FIRST, "before its fourth event"),
    ("no heartbeat is named", FIRST, "not a number of seconds"),
    ("the heartbeat is a word", FIRST, "not a number of seconds"),
    ("there are no comments", COMMENTS, "No comment came"),
    ("the cursor of the JSON is one behind", JSON, "The events do not fit"),
    ("the cursor of the JSON is one ahead", JSON, "The events do not fit"),
    ("streams may be cached", HEADERS, "cache-control: None"),
    ("streams may be transformed", HEADERS, "cache-control: no-store"),
    ("proxies may hold streams back", HEADERS, "x-accel-buffering: None"),
    ("streams are text", HEADERS, "content-type: text/plain"),
    ("streams are always compressed", HEADERS, "content-encoding: gzip"),
    ("streams are compressed where accepted", HEADERS, "content-encoding: gzip"),
    ("streams name a compression that they have not", HEADERS, "content-encoding: gzip"),
    ("a stop is ignored", STOPPED, "ended with turn_complete"),
    ("a stop ends as an error", STOPPED, "ended with turn_error"),
    ("a stop has another reason", STOPPED, "it should be cancelled"),
    ("a stop loses the words", STOPPED, "characters"),
    ("a deleted chat is still there", DELETED, "200, not 404"),
    ("a deleted chat writes on", DELETED, "ended with turn_complete"),
    ("a deletion is sent as a stop", DELETED, "it should be deleted"),
    ("readers of a deleted chat wait for ever", DELETED, "did not answer"),
    ("there is no turn_start", ORDER, "The first event was"),
    ("round_stop comes before the first block", ORDER, "outside of a round"),
    ("the first block has the index 1", ORDER, "where block 0 was next"),
    ("block_stop is left out", ORDER, "while a block was open"),
    ("a round is stopped twice", ORDER, "while no round was open"),
    ("there are two ends", ORDER, "one end must come last"),
    ("an event comes after the end", ORDER, "one end must come last"),
    ("a delta is too long", ORDER, "code points"),
    ("the JSON has another status than the stream", ORDER, "but the turn is error"),
    ("offsets count UTF-16", OFFSETS, "The events do not fit"),
    ("offsets count bytes", OFFSETS, "The events do not fit"),
    ("notices have ids", NOTICES, "The notice status has an id"),
    ("deltas have no ids", NOTICES, "block_delta has no id"),
    ("a turn is cancelled when its reader goes", ALONE, "should be complete"),
    ("a turn is complete when its reader goes", ALONE, "In a turn whose reader left"),
    ("a turn is forgotten when its reader goes", ALONE, "the turn is running"),
    ("a turn pauses without readers", ALONE, "the turn is running"),
    ("the answer to a POST binds its turn", ALONE, "should be complete"),
    ("a turn that ended is running for ever", ALONE, "the turn is running"),
    ("keys are ignored", POSTED, "answered by another turn"),
    ("the answer to a POST lacks the first event", POSTED, "did not begin with turn_start"),
    ("what is no cursor of a turn is the beginning", REFUSED, "200, not 400"),
    ("the stream of a user turn is empty", REFUSED, "200, not 409"),
    ("an unknown turn has a stream", REFUSED, "200, not 404"),
    ("any token is good", REFUSED, "200, not 401"),
    ("posts at once with one key are two", ONCE, "409, not 201"),
    ("a message to a busy branch is accepted", BUSY, "was accepted"),
    ("a refused message is stored", BUSY, "has 3 turns"),
    ("the cursor of a chat is ignored", CHAT, "new turns in all"),
    ("a chat leaves an event out after a cut", CHAT, ""),
    ("a chat does not send messages of the user", CHAT, "1 new turns"),
    ("a chat sends messages without their text", CHAT, "In the message"),
    ("the page of a chat has an old cursor", PAGE, "which the page has"),
    ("what is no cursor of a chat is the beginning", CHAT_REFUSED, "200, not 400"),
    ("a cursor of another chat is good", CHAT_REFUSED, "200, not 400"),
    ("a chat of nobody has a stream", CHAT_REFUSED, "200, not 404"),
    ("the feed has no first id", FEED, "not with an id alone"),
    ("the feed has no chats", FEED, "The new chat was not sent"),
    ("the feed has no deletions", FEED, "did not answer"),
    ("the feed sends a state twice", FEED, "twice in a row"),
    ("what is no cursor of a feed is the beginning", FEED_REFUSED, "200, not 400"),
    ("a call in the background is not in the JSON", CALL, "was never in the `jobs`"),
    ("a call in the background is an action", CALL, "A person is asked for the call c1"),
    ("who stays is not informed of a call", CALL, "A reader that stayed got no tool_progress"),
    ("who comes later is not informed of a call", CALL, "A reader that came while the call ran got no tool_progress"),
    ("who comes later gets no output", CALL, "A reader that came while the call ran got no tool_output"),
    ("tool_progress has an id", CALL, "The notice tool_progress has an id"),
    ("tool_progress names another call", CALL, "tool_progress names"),
    ("tool_progress comes after the result", CALL, "came after its result"),
    ("a call has no result", CALL, "has no result"),
    ("a call has two results", CALL, "has two results"),
    ("a call stays in the JSON", CALL, "still has a job in `jobs`"),
    ("an agent works on after its call", CALL, "the turn that works on it is running"),
    ("the chat of an agent is in the list", CALL, "is in the list of chats"),
]

# Defects that could crash the kit itself. The test runs all checks, and the named check must fail.
HOSTILE = [
    ("every answer is 500", CUTS),
    ("every answer is 503", CUTS),
    ("every connection is closed at once", CUTS),
    ("no request is answered", CUTS),
    ("JSON is no JSON", CUTS),
    ("JSON is a list", CUTS),
    ("JSON does not end", CUTS),
    ("an event is broken JSON", CUTS),
    ("an event is no UTF-8", CUTS),
    ("the data of an event is a list", CUTS),
    ("an event lacks a member", CUTS),
    ("comments flood the stream", CUTS),
    ("one event floods the stream", CUTS),
    ("a frame does not end", CUTS),
    ("streams are always compressed", HEADERS),
    ("the last event is never sent", CUTS),
    ("an event is left out after each cut", CUTS),
]


async def test_a_server_without_a_defect_holds_every_promise() -> None:
    async with small_server() as url:
        report = await examine(url, TOKEN, MESSAGE, 25)
    assert {result.status for result in report.results} == {"held"}, report.as_text()


async def test_a_server_that_is_busy_is_asked_again() -> None:
    async with small_server("every request is refused once, as of a busy server") as url:
        report = await examine(url, TOKEN, MESSAGE, 25)
    assert {result.status for result in report.results} == {"held"}, report.as_text()


async def test_each_defect_is_found_by_its_line() -> None:
    free = asyncio.Semaphore(8)

    async def missed(defect: str, promise: str, part: str, patience: float = 5) -> str:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with free, small_server(defect) as url, httpx2.AsyncClient(base_url=url, headers=headers) as client:
            checks = ServerChecks(client, MESSAGE, patience, has_token=True).checks()
            (check,) = [check for check in checks if check.promise == promise]
            result = await check.run(3 * patience)
        return "" if result.status == "failed" and part in result.text else f"{defect}: {result.status}, {result.text}"

    found = await asyncio.gather(*(missed(*row) for row in DEFECTS))
    # On a busy machine a server may take longer than the kit's patience. So defects that were not detected are checked
    # again, one at a time.
    again = [row for row, wrong in zip(DEFECTS, found, strict=True) if wrong]
    wrong = "\n".join([each for row in again if (each := await missed(*row, patience=25))])
    assert not wrong, wrong


@pytest.mark.parametrize(("defect", "promise"), HOSTILE)
async def test_whatever_a_server_sends_the_kit_ends_with_a_whole_report(defect: str, promise: str) -> None:
    async with small_server(defect) as url:
        report = await examine(url, TOKEN, MESSAGE, 1)
    statuses = {result.promise: result.status for result in report.results}
    assert (statuses[promise], len(statuses)) == ("failed", 26), report.as_text()
    assert max(result.seconds for result in report.results) < 60  # every check has a time limit
    assert "Traceback" not in report.as_text()

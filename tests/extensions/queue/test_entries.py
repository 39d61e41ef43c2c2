"""The order of queued messages. An entry is a pair of a user turn and its queued answer, and follows another answer."""

from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from uuid import UUID

from tests.support.effort import tries
from turnstream.domain.blocks import Block
from turnstream.domain.kinds import TEXT
from turnstream.extensions.queue.entries import Delivered, Pair, QueueEntry, Recipient, line_of, relinked
from turnstream.kit.ids import new_id

Pairs = dict[UUID, Pair]


def tree(*parents: int | None) -> list[Pair]:
    """Creates pairs from their parents: a number is the index of the pair that precedes, and None means an answer that
    has already started.
    """
    first, pairs = new_id(), list[Pair]()
    for parent in parents:
        pairs.append(Pair(new_id(), new_id(), first if parent is None else pairs[parent].answer))
    return pairs


def by_id(pairs: list[Pair]) -> Pairs:
    return {pair.question: pair for pair in pairs}


def after_change(pairs: Pairs, line: list[Pair], new_line: list[Pair]) -> Pairs:
    kept = {pair.question for pair in new_line}
    gone = {pair.question for pair in line} - kept
    left = {id: pair for id, pair in pairs.items() if id not in gone}
    return left | by_id(relinked(pairs, line, new_line))


def test_a_line_leads_from_the_first_pair_to_a_fork() -> None:
    a, b, c, d, e = pairs = tree(None, 0, 1, 2, 2)
    assert line_of(by_id(pairs), b.question) == [a, b, c]
    assert line_of(by_id(pairs), d.question) == [a, b, c, d]
    assert line_of(by_id(pairs), e.question) == [a, b, c, e]


def test_a_pair_that_is_taken_out_leaves_its_place_to_those_behind_it() -> None:
    a, b, c = pairs = tree(None, 0, 1)
    assert relinked(by_id(pairs), pairs, [a, c]) == [Pair(c.question, c.answer, a.answer)]
    assert [pair.question for pair in relinked(by_id(pairs), pairs, [b, c])] == [b.question, c.question]
    assert relinked(by_id(pairs), pairs, [a, b]) == []
    assert relinked(by_id([a]), [a], []) == []


def test_pairs_behind_a_fork_follow_the_new_end_of_the_line() -> None:
    a, b, c, d = pairs = tree(None, 0, 1, 1)
    moved = relinked(by_id(pairs), [a, b], [b, a])
    assert [pair.question for pair in moved] == [b.question, a.question, c.question, d.question]
    assert {pair.after for pair in moved[2:]} == {a.answer}
    assert {pair.after for pair in relinked(by_id(pairs), [a, b], [a])} == {a.answer}


def test_an_edited_pair_comes_again_with_all_behind_it() -> None:
    _, b, c = pairs = tree(None, 0, 1)
    assert relinked(by_id(pairs), pairs, pairs, [b.question]) == [b, c]
    assert relinked(by_id(pairs), pairs, pairs) == []


def test_a_new_pair_moves_those_behind_its_place() -> None:
    a, b = line = tree(None, 0)
    new = Pair(new_id(), new_id(), a.after)
    pairs = by_id([*line, new])
    assert [pair.question for pair in relinked(pairs, line, [new, a, b])] == [a.question, b.question]
    assert relinked(by_id([new]), [], [new]) == []


def test_any_change_keeps_every_other_pair_reachable_and_moves_the_pairs_behind_a_moved_one() -> None:
    random = Random(52)
    for _ in range(tries(200)):
        pairs = by_id(tree(None, *(random.randrange(number + 1) for number in range(random.randrange(8)))))
        line = line_of(pairs, random.choice(list(pairs)))
        new_line = random.sample(line, len(line) - random.randrange(2))
        moved = relinked(pairs, line, new_line)
        then = after_change(pairs, line, new_line)
        if new_line:
            assert [pair.question for pair in _path(then, new_line[-1])] == [pair.question for pair in new_line]
        answers = {pair.answer for pair in then.values()} | {line[0].after}
        assert all(pair.after in answers for pair in then.values())
        again = {pair.answer for pair in moved}
        assert {pair.answer for pair in then.values() if pair.after in again} <= again
        seen: set[UUID | None] = set()
        for pair in moved:
            assert pair.after not in again or pair.after in seen, "behind the one that it follows"
            seen.add(pair.answer)


def _path(pairs: Pairs, last: Pair) -> list[Pair]:
    answers, path = {pair.answer: pair for pair in pairs.values()}, [pairs[last.question]]
    while path[0].after in answers:
        path.insert(0, answers[path[0].after])
    return path


def test_a_version_changes_with_kind_and_blocks_and_not_with_the_place() -> None:
    blocks = (Block(0, 0, 0, TEXT, "Hi"),)
    entry = QueueEntry(new_id(), "queued", new_id(), blocks, datetime.now(UTC), new_id())
    assert replace(entry, after=None).version == entry.version
    others = [replace(entry, kind="steer"), replace(entry, blocks=(replace(blocks[0], text="Ho"),))]
    assert len({each.version for each in (entry, *others)}) == 3


def test_a_refusal_names_the_turn_and_the_round_that_have_the_message() -> None:
    entry, turn = new_id(), new_id()
    assert f"to turn {turn}, and" in Delivered(entry, Recipient(turn)).detail
    assert f"to turn {turn} in round 2, and" in Delivered(entry, Recipient(turn, 2)).detail

"""The queue of a chat: messages whose turns have not started, and steers that no round has received."""

from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Any, Literal
from uuid import UUID

from turnstream.domain.blocks import Block
from turnstream.domain.errors import Conflict

EntryKind = Literal["queued", "steer"]


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A message that no model call has received. A `queued` message has the id of its user turn; `turn` is its answer,
    and `after` is the answer that it follows (None: it starts a branch at the root). A `steer` has its own id, and
    `turn` is its target.
    """

    id: UUID
    kind: EntryKind
    turn: UUID
    blocks: tuple[Block, ...]
    created_at: datetime
    after: UUID | None = None

    @property
    def version(self) -> str:
        """A digest of the displayed members, which a move does not change."""
        shown = [self.kind, *(part for block in self.blocks for part in (block.type, block.text, block.data))]
        return sha256(repr(shown).encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Recipient:
    """The turn that received a message, and for a steer the round that contains its `user_text` blocks."""

    turn: UUID
    round: int | None = None


class Delivered(Conflict):
    """The message is no longer in the queue: its turn has started, or a round has received it."""

    def __init__(self, entry: UUID, recipient: Recipient) -> None:
        place = "" if recipient.round is None else f" in round {recipient.round}"
        detail = f"Message {entry} was delivered to turn {recipient.turn}{place}, and cannot be changed any more."
        super().__init__(detail, code="delivered")
        self.recipient = recipient

    @property
    def members(self) -> Mapping[str, Any]:
        return {"delivered": asdict(self.recipient)}


@dataclass(frozen=True, slots=True)
class Pair:
    """A user turn and its queued answer, which follow the answer `after`. A pair that has no entry in the queue keeps
    its position, for example while its answer is being cancelled.
    """

    question: UUID
    answer: UUID
    after: UUID | None


def line_of(pairs: Mapping[UUID, Pair], question: UUID) -> list[Pair]:
    """Returns the consecutive pairs on `question`'s branch, in order. The line ends at a pair with two successors."""
    of_answer, behind = {pair.answer: pair for pair in pairs.values()}, _by_predecessor(pairs.values())
    line = deque([pairs[question]])
    while (before := line[0].after) in of_answer:
        line.appendleft(of_answer[before])
    while len(followers := behind[line[-1].answer]) == 1:
        line += followers
    return list(line)


def relinked(
    pairs: Mapping[UUID, Pair], line: Sequence[Pair], new_line: Sequence[Pair], edited: Collection[UUID] = ()
) -> list[Pair]:
    """Returns the pairs that readers must read again if `line` becomes `new_line`, in order: each pair that is `edited`
    or follows another answer than before, and all pairs after it. Pairs that followed the end of the old line now
    follow the end of the new line. Pairs that followed a removed pair now follow the pair before it.
    """
    root, kept = (line or new_line)[0].after, {pair.question for pair in new_line}
    placed = {id: pair for id, pair in pairs.items() if id not in {gone.question for gone in line}}
    # If an answer of the line is removed, or is no longer the end of the line, the messages after it now follow the
    # answer to which it is mapped here.
    instead: dict[UUID | None, UUID | None] = {}
    last = root
    for pair in line:
        if pair.question in kept:
            last = pair.answer
        else:
            instead[pair.answer] = last
    last = root
    for pair in new_line:
        placed[pair.question] = replace(pair, after=last)
        last = pair.answer
    if line:
        instead[line[-1].answer] = last
    for pair in pairs.values():
        if pair.question in placed and pair.question not in kept:
            placed[pair.question] = replace(pair, after=instead.get(pair.after, pair.after))
    behind, answers = _by_predecessor(placed.values()), {pair.answer for pair in placed.values()}
    found: list[Pair] = []
    changed: set[UUID | None] = set()  # the answers of `found`
    waiting = deque(pair for pair in placed.values() if pair.after not in answers)
    while waiting:
        pair = waiting.popleft()
        if pair.after in changed or pair.question in edited or pairs.get(pair.question) != pair:
            found.append(pair)
            changed.add(pair.answer)
        waiting += behind[pair.answer]
    return found


def _by_predecessor(pairs: Collection[Pair]) -> Mapping[UUID | None, list[Pair]]:
    found: dict[UUID | None, list[Pair]] = defaultdict(list)
    for pair in pairs:
        found[pair.after].append(pair)
    return found

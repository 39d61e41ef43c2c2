"""The shipped patterns: texts that match, texts that do not match, and equal results however a reply is split."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstream.extensions.guardrails.patterns import CONTEXT, KINDS, PatternKind, Patterns, spans_of
from turnstream.libraries.guards.guard import EndTurn, Guard, Mask, Pass, Passage, Ruling, Window, masked

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKC+/=\nabc\n-----END RSA PRIVATE KEY-----"
SECRETS: Sequence[tuple[PatternKind, str]] = [
    ("keys", "sk-" + "a1B2" * 6),
    ("keys", "AKIA" + "ABCD1234EFGH5678"),
    ("keys", "ghp_" + "aB3d" * 9),
    ("keys", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijkl"),
    ("keys", PEM),
    ("cards", "4111 1111 1111 1111"),
    ("cards", "378282246310005"),
    ("cards", "5555-5555-5555-4444"),
    ("phones", "+49 30 901820"),
    ("phones", "+1 (212) 555-0123"),
    ("phones", "212-555-0123"),
    ("emails", "ada.lovelace+x@example.co.uk"),
]
HARMLESS = [
    "4111 1111 1111 1112",
    "0000 0000 0000 0000",
    "order 12345678901234567890123456789",
    "2026-11-27 04:21:35",
    "sk-short",
    "the task-force and risk-averse",
    "3.14159265358979323846",
    "user@localhost",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "192.168.100.200",
]


@pytest.mark.parametrize(("kind", "secret"), SECRETS)
def test_a_secret_is_masked_whole(kind: PatternKind, secret: str) -> None:
    for around in ("{}", "It is {}.", "({})", "a {}, b", "x\n{}\ny"):
        text = around.format(secret)
        assert masked(text, spans_of(text, [kind])) == around.format(f"[{kind.removesuffix('s')}]")


@pytest.mark.parametrize("text", HARMLESS)
def test_text_without_a_secret_is_unchanged(text: str) -> None:
    assert masked(text, spans_of(text, KINDS)) == text


def test_a_card_is_found_beside_other_numbers() -> None:
    text = "12 4111 1111 1111 1111 2026 7"
    assert masked(text, spans_of(text, ["cards"])) == "12 [card] 2026 7"


_PIECES = st.sampled_from(
    [*(secret for _, secret in SECRETS), *HARMLESS, " ", ". ", "-", "\n", "a", "1", "(", "+", "."]
)


@st.composite
def _cut_texts(draw: st.DrawFn) -> list[str]:
    text = "".join(draw(st.lists(_PIECES, max_size=6)))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@given(_cut_texts(), st.sets(st.sampled_from(KINDS), min_size=1))
async def test_no_cut_of_a_reply_passes_a_match_of_the_whole_text(pieces: list[str], chosen: set[PatternKind]) -> None:
    kinds = sorted(chosen)
    check, whole = Patterns(kinds), "".join(pieces)
    right = masked(whole, spans_of(whole, kinds))
    window, shown = Window(Guard("p", check, frozenset({"text"}), 0, CONTEXT)), ""
    for place, piece in enumerate([*pieces, ""]):
        final = place == len(pieces)
        window.add(piece)
        if window.is_due(final=final):
            text, start = window.passage()
            ruling = await check(Passage("text", text, "ada", start, final))
            assert isinstance(ruling, Pass | Mask)
            passed = window.apply(ruling, final=final)
            if passed is None:
                text, start = window.whole()
                ruling = await check(Passage("text", text, "ada", start, final))
                assert isinstance(ruling, Pass | Mask)
                passed = window.apply_whole(ruling, final=final)
                assert passed.startswith(shown), "what was shown was right"
                shown = ""
            shown += passed
            assert right.startswith(shown)
    assert shown == right


async def ruled(check: Patterns, text: str, start: int = 0, *, final: bool = False) -> Ruling:
    return await check(Passage("text", text, "ada", start, final))


async def test_only_unfinished_matches_are_held_back() -> None:
    check = Patterns(KINDS)
    assert await ruled(check, "All is well so far, and ") == Pass(0)
    assert await ruled(check, "All is well so far") == Pass(3)
    assert await ruled(check, "Call 212-555 ") == Pass(8)
    assert await ruled(check, "-----BEGIN RSA PRIVATE KEY-----\nabc\n") == Pass(36)
    assert await ruled(check, "-----BEGIN CERTIFICATE-----\n" + "abc def\n" * 9) == Pass(0)
    assert await ruled(check, "far", final=True) == Pass(0)


async def test_a_reason_ends_the_turn() -> None:
    check = Patterns(["emails"], "No addresses.")
    assert await ruled(check, "a@b.org") == EndTurn("No addresses.")
    assert await ruled(check, "a@b.org and", 7) == Pass(3)


async def test_a_long_text_is_checked_beside_the_event_loop() -> None:
    ruling = await ruled(Patterns(KINDS), "word " * 60_000 + "a@b.org", final=True)
    assert isinstance(ruling, Mask)
    assert len(ruling.spans) == 1

"""Encryption of secrets: only the right key decrypts a value, and only in the place that it was encrypted for."""

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstream.domain.errors import CannotOpen
from turnstream.libraries.secrets.sealing import EARLIER, MasterKeys, OwnerKey, is_sealed, new_master_key, new_owner_key

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(_TEXTS, _TEXTS, _TEXTS)
def test_a_sealed_value_opens_at_its_place(value: str, url: str, header: str) -> None:
    key = OwnerKey(new_owner_key())
    sealed = key.seal(value, url, header)
    assert is_sealed(sealed)
    assert sealed.isascii()
    assert key.open(sealed, url, header) == value
    assert key.seal(value, url, header) == sealed


def test_a_sealed_value_opens_nowhere_else() -> None:
    key = OwnerKey(new_owner_key())
    sealed = key.seal("Bearer of news", "https://crm.example.com/", "authorization")
    places = [("https://other.example.com/", "authorization"), ("https://crm.example.com/", "x-key"), ()]
    for place in places:
        with pytest.raises(CannotOpen):
            key.open(sealed, *place)
    with pytest.raises(CannotOpen):
        OwnerKey(new_owner_key()).open(sealed, "https://crm.example.com/", "authorization")


@pytest.mark.parametrize("damage", ["", "A", "====", "é", "AAAA" * 20])
def test_a_damaged_value_is_refused(damage: str) -> None:
    key = OwnerKey(new_owner_key())
    with pytest.raises(CannotOpen):
        key.open(f"turnstream-sealed:1:{damage}", "place")


async def test_the_first_master_key_wraps_and_all_unwrap() -> None:
    old, new, key = new_master_key(), new_master_key(), new_owner_key()
    before = MasterKeys.read(old)
    wrapped = await before.wrap("ada", key)
    both = MasterKeys.read(f"{new},\n{old}")
    assert await both.unwrap("ada", wrapped) == key
    again = await both.wrap("ada", key)
    assert again.startswith(both.first)
    assert await MasterKeys.read(new).unwrap("ada", again) == key
    with pytest.raises(CannotOpen, match=before.first.hex()):
        await MasterKeys.read(new).unwrap("ada", wrapped)


async def test_the_key_of_an_owner_is_none_of_another() -> None:
    keys = MasterKeys.read(new_master_key())
    wrapped = await keys.wrap("ada", new_owner_key())
    for owner, stored in [("bob", wrapped), ("ada", wrapped[:-1]), ("ada", wrapped[:-1] + bytes([wrapped[-1] ^ 1]))]:
        with pytest.raises(CannotOpen):
            await keys.unwrap(owner, stored)


def test_a_key_decrypts_contents_of_the_key_before_until_that_is_destroyed() -> None:
    old, new, other = (new_owner_key() for _ in range(3))
    sealed, earlier = OwnerKey(old).seal("secret", "place"), OwnerKey(new).encrypt(old, EARLIER)
    key = OwnerKey(new, earlier=earlier)
    assert key.open(sealed, "place") == "secret"
    assert OwnerKey(new).open(key.seal("secret", "place"), "place") == "secret"
    for closed in (OwnerKey(new), OwnerKey(other, earlier=OwnerKey(other).encrypt(new, EARLIER))):
        with pytest.raises(CannotOpen):
            closed.open(sealed, "place")
    with pytest.raises(CannotOpen):
        OwnerKey(other, earlier=earlier)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "at least one key"),
        ("not base64!", "key 1 must be base64"),
        (b64encode(bytes(16)).decode(), "key 1 must have 32 bytes, not 16"),
        (f"{b64encode(bytes(32)).decode()},c2hvcnQ=", "key 2 must have 32 bytes, not 5"),
    ],
    # fixed ids, because the random keys differ in each process of a test run
    ids=["none", "no base64", "short", "second short"],
)
def test_a_wrong_master_key_is_named_and_not_shown(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        MasterKeys.read(text)
    assert "c2hvcnQ" not in str(error.value)

import base64

import pytest

from turnstream.libraries.outgoing.signature import headers_of, key_of, sign, verify

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
OTHER = "whsec_" + base64.b64encode(b"fedcba9876543210fedcba9876543210").decode()
BODY = '{"text": "Grüße"}'.encode()
SENT = 1_700_000_000


def signed() -> dict[str, str]:
    return headers_of(SECRET, "msg_1", SENT, BODY)


def test_the_example_of_the_specification_is_signed_as_it_is_there() -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body) == expected


def test_the_headers_carry_id_time_and_signature() -> None:
    assert signed() == {
        "webhook-id": "msg_1",
        "webhook-timestamp": "1700000000",
        "webhook-signature": sign(SECRET, "msg_1", SENT, BODY),
    }


def test_a_signature_is_verified_with_headers_in_any_case() -> None:
    assert verify(SECRET, {name.title(): value for name, value in signed().items()}, BODY, now=SENT + 1)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_header_that_is_missing_or_was_changed_is_refused(name: str) -> None:
    without = {other: value for other, value in signed().items() if other != name}
    assert not verify(SECRET, without, BODY, now=SENT)
    assert not verify(SECRET, {**signed(), name: signed()[name] + "1"}, BODY, now=SENT, tolerance=10**12)


def test_another_body_or_another_secret_is_refused() -> None:
    assert not verify(SECRET, signed(), BODY + b" ", now=SENT)
    assert not verify(OTHER, signed(), BODY, now=SENT)


@pytest.mark.parametrize("late", [-301, 301])
def test_a_signature_out_of_its_time_is_refused(late: int) -> None:
    assert verify(SECRET, signed(), BODY, now=SENT + late - late // abs(late))
    assert not verify(SECRET, signed(), BODY, now=SENT + late)
    assert verify(SECRET, signed(), BODY, now=SENT + late, tolerance=302)


@pytest.mark.parametrize("stamp", ["", "soon", "-1", "1e9", "²", "9" * 5000])
def test_a_time_that_is_none_is_refused(stamp: str) -> None:
    assert not verify(SECRET, {**signed(), "webhook-timestamp": stamp}, BODY, now=SENT)


def test_one_right_signature_among_several_is_enough() -> None:
    several = f"v1,bm90IHRoaXM= v2,ünknown {signed()['webhook-signature']}"
    assert verify(SECRET, {**signed(), "webhook-signature": several}, BODY, now=SENT)


def test_a_secret_may_be_written_without_its_prefix() -> None:
    assert key_of(SECRET) == key_of(SECRET.removeprefix("whsec_")) == b"0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("secret", ["", "whsec_", "not base64!", "whsec_abc", "ä" * 8])
def test_a_secret_that_is_no_base64_is_refused(secret: str) -> None:
    with pytest.raises(ValueError, match="whsec_"):
        key_of(secret)

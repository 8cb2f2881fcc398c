from __future__ import annotations

import pytest

from remuda import webhooks
from remuda.webhooks import WebhookVerificationError, sign, verify

# The example of the Standard Webhooks specification.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = b'{"test": 2432232314}'
SENT_AT = 1614265330
HEADERS = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": str(SENT_AT),
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}
OTHER = "whsec_" + "AAAA" * 8


def test_example_of_the_specification_is_accepted() -> None:
    assert verify(HEADERS, BODY, SECRET, now=SENT_AT) == {"test": 2432232314}
    assert verify(HEADERS, BODY.decode(), SECRET, now=SENT_AT) == {"test": 2432232314}
    assert sign(SECRET, HEADERS["webhook-id"], SENT_AT, BODY) == HEADERS["webhook-signature"]


def test_header_names_are_case_insensitive() -> None:
    assert verify({name.title(): value for name, value in HEADERS.items()}, BODY, SECRET, now=SENT_AT)


def test_one_matching_signature_or_secret_is_enough() -> None:
    several = {**HEADERS, "webhook-signature": f"v1,AAAA v1a,xyz {HEADERS['webhook-signature']}"}
    assert verify(several, BODY, SECRET, now=SENT_AT)
    assert verify(HEADERS, BODY, [OTHER, SECRET], now=SENT_AT)


@pytest.mark.parametrize(
    ("change", "body", "message"),
    [
        ({}, BODY + b" ", "no signature matches"),
        ({"webhook-id": "msg_other"}, BODY, "no signature matches"),
        ({"webhook-signature": "v1,AAAA"}, BODY, "no signature matches"),
        ({"webhook-signature": HEADERS["webhook-signature"].replace("v1,", "v2,")}, BODY, "no signature matches"),
        ({"webhook-signature": "v1,ä"}, BODY, "no signature matches"),
        ({"webhook-signature": ""}, BODY, "webhook-signature is missing"),
        ({"webhook-id": ""}, BODY, "webhook-id is missing"),
        ({"webhook-timestamp": "soon"}, BODY, "expected seconds"),
        ({"webhook-timestamp": "-1"}, BODY, "expected seconds"),
        ({"webhook-timestamp": "²"}, BODY, "expected seconds"),
    ],
)
def test_changed_messages_are_rejected(change: dict[str, str], body: bytes, message: str) -> None:
    with pytest.raises(WebhookVerificationError, match=message):
        verify({**HEADERS, **change}, body, SECRET, now=SENT_AT)


def test_wrong_secret_is_rejected() -> None:
    with pytest.raises(WebhookVerificationError, match="no signature matches"):
        verify(HEADERS, BODY, OTHER, now=SENT_AT)


def test_old_and_future_messages_are_rejected() -> None:
    assert verify(HEADERS, BODY, SECRET, now=SENT_AT + 300)
    assert verify(HEADERS, BODY, SECRET, now=SENT_AT - 300)
    with pytest.raises(WebhookVerificationError, match="too old"):
        verify(HEADERS, BODY, SECRET, now=SENT_AT + 301)
    with pytest.raises(WebhookVerificationError, match="from the future"):
        verify(HEADERS, BODY, SECRET, now=SENT_AT - 301)
    with pytest.raises(WebhookVerificationError, match="too old"):
        verify(HEADERS, BODY, SECRET)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_not base64!", []])
def test_invalid_secret_raises_value_error(secret: str) -> None:
    with pytest.raises(ValueError, match="secret: expected"):
        verify(HEADERS, BODY, secret, now=SENT_AT)


@pytest.mark.parametrize("body", [b"[]", b"not json"])
def test_signed_body_that_is_not_a_json_object_is_rejected(body: bytes) -> None:
    headers = {**HEADERS, "webhook-signature": sign(SECRET, HEADERS["webhook-id"], SENT_AT, body)}
    with pytest.raises(WebhookVerificationError, match="is not"):
        verify(headers, body, SECRET, now=SENT_AT)


def test_default_tolerance_is_five_minutes() -> None:
    assert webhooks.TOLERANCE == 300

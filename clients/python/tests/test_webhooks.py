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


def test_the_example_of_the_specification() -> None:
    assert verify(HEADERS, BODY, SECRET, now=SENT_AT) == {"test": 2432232314}
    assert verify(HEADERS, BODY.decode(), SECRET, now=SENT_AT) == {"test": 2432232314}
    assert sign(SECRET, HEADERS["webhook-id"], SENT_AT, BODY) == HEADERS["webhook-signature"]


def test_header_names_in_any_case() -> None:
    assert verify({name.title(): value for name, value in HEADERS.items()}, BODY, SECRET, now=SENT_AT)


def test_one_of_several_signatures_or_secrets_is_enough() -> None:
    several = {**HEADERS, "webhook-signature": f"v1,AAAA v1a,xyz {HEADERS['webhook-signature']}"}
    assert verify(several, BODY, SECRET, now=SENT_AT)
    assert verify(HEADERS, BODY, [OTHER, SECRET], now=SENT_AT)


@pytest.mark.parametrize(
    ("change", "body", "message"),
    [
        ({}, BODY + b" ", "no signature fits"),
        ({"webhook-id": "msg_other"}, BODY, "no signature fits"),
        ({"webhook-signature": "v1,AAAA"}, BODY, "no signature fits"),
        ({"webhook-signature": HEADERS["webhook-signature"].replace("v1,", "v2,")}, BODY, "no signature fits"),
        ({"webhook-signature": "v1,ä"}, BODY, "no signature fits"),
        ({"webhook-signature": ""}, BODY, "webhook-signature is missing"),
        ({"webhook-id": ""}, BODY, "webhook-id is missing"),
        ({"webhook-timestamp": "soon"}, BODY, "expected seconds"),
        ({"webhook-timestamp": "-1"}, BODY, "expected seconds"),
        ({"webhook-timestamp": "²"}, BODY, "expected seconds"),
    ],
)
def test_anything_else_is_refused(change: dict[str, str], body: bytes, message: str) -> None:
    with pytest.raises(WebhookVerificationError, match=message):
        verify({**HEADERS, **change}, body, SECRET, now=SENT_AT)


def test_another_secret_is_refused() -> None:
    with pytest.raises(WebhookVerificationError, match="no signature fits"):
        verify(HEADERS, BODY, OTHER, now=SENT_AT)


def test_old_messages_are_refused() -> None:
    assert verify(HEADERS, BODY, SECRET, now=SENT_AT + 300)
    assert verify(HEADERS, BODY, SECRET, now=SENT_AT - 300)
    with pytest.raises(WebhookVerificationError, match="too old"):
        verify(HEADERS, BODY, SECRET, now=SENT_AT + 301)
    with pytest.raises(WebhookVerificationError, match="from the future"):
        verify(HEADERS, BODY, SECRET, now=SENT_AT - 301)
    with pytest.raises(WebhookVerificationError, match="too old"):
        verify(HEADERS, BODY, SECRET)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_not base64!", []])
def test_a_secret_that_is_none_is_a_mistake_of_yours(secret: str) -> None:
    with pytest.raises(ValueError, match="secret: expected"):
        verify(HEADERS, BODY, secret, now=SENT_AT)


@pytest.mark.parametrize("body", [b"[]", b"not json"])
def test_signed_nonsense_is_refused(body: bytes) -> None:
    headers = {**HEADERS, "webhook-signature": sign(SECRET, HEADERS["webhook-id"], SENT_AT, body)}
    with pytest.raises(WebhookVerificationError, match="is not"):
        verify(headers, body, SECRET, now=SENT_AT)


def test_the_tolerance_is_five_minutes() -> None:
    assert webhooks.TOLERANCE == 300

//! Signatures as specified by Standard Webhooks.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rand::RngCore as _;
use remuda_domain::webhook::WebhookSecret;
use ring::hmac;

const PREFIX: &str = "whsec_";

pub(crate) fn new_secret() -> WebhookSecret {
    let mut bytes = [0; WebhookSecret::LEN];
    rand::rng().fill_bytes(&mut bytes);
    WebhookSecret::from_bytes(bytes)
}

/// The text form of a secret, which its owner sees once.
pub(crate) fn secret_text(secret: &WebhookSecret) -> String {
    format!("{PREFIX}{}", STANDARD.encode(secret.as_bytes()))
}

/// The value of the header `webhook-signature`: one signature for each secret, separated by spaces.
pub(super) fn sign(secrets: &[WebhookSecret], id: &str, timestamp: i64, body: &[u8]) -> String {
    let mut header = String::new();
    for secret in secrets {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()));
        context.update(format!("{id}.{timestamp}.").as_bytes());
        context.update(body);
        header.push_str(if header.is_empty() { "v1," } else { " v1," });
        STANDARD.encode_string(context.sign(), &mut header);
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(text: &str) -> WebhookSecret {
        WebhookSecret::from_bytes(STANDARD.decode(text.strip_prefix(PREFIX).unwrap()).unwrap())
    }

    /// The test vector of the Standard Webhooks libraries.
    #[test]
    fn signatures_match_the_standard_webhooks_test_vector() {
        let known = secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        let signed = |secrets: &[WebhookSecret]| {
            sign(secrets, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#)
        };
        let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(signed(std::slice::from_ref(&known)), expected);
        let both = signed(&[new_secret(), known]);
        assert_eq!(both.split(' ').count(), 2);
        assert!(both.ends_with(expected), "{both}");
    }

    #[test]
    fn secrets_are_random_and_32_bytes_long() {
        let (one, two) = (new_secret(), new_secret());
        assert_ne!(one, two);
        assert_eq!(secret(&secret_text(&one)), one);
        assert_eq!(one.as_bytes().len(), 32);
    }
}

//! Conversions of messages: of requests and of transcripts.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use remuda_domain::{
    Error, MessageId,
    error::Result,
    limits,
    message::{Image, Message, Part, text_of},
    run::MessageInput,
};

use super::timestamp;
use crate::v1;

/// Converts a message and generates its id. The size is checked before anything is copied.
pub fn message_input(input: v1::MessageInput) -> Result<MessageInput> {
    limits::check_message_size(message_bytes(&input))?;
    if !input.id.is_empty() {
        return Err(Error::invalid("message.id", "expected nothing: the server names messages"));
    }
    let text = (!input.text.is_empty()).then(|| Part::text(input.text));
    let images = input.images.into_iter().enumerate();
    let images = images.map(|(index, image)| Ok(Part::Image { image: read_image(index, image)? }));
    Ok(MessageInput {
        id: MessageId::new(),
        parts: text.into_iter().map(Ok).chain(images).collect::<Result<_>>()?,
        agent: (!input.agent.is_empty()).then_some(input.agent),
    })
}

/// The size of a message: its text as stored and sent (escaped), and its images.
#[must_use]
pub fn message_bytes(input: &v1::MessageInput) -> usize {
    let images = input.images.iter().map(|image| image.data.len() + image.url.len() + image.media_type.len());
    images.fold(escaped_bytes(&input.text), usize::saturating_add)
}

/// The length of a text in JSON, where some characters take six bytes.
fn escaped_bytes(text: &str) -> usize {
    let size = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 2,
        0..=0x1f => 6,
        _ => 1,
    };
    text.bytes().map(size).sum()
}

fn read_image(index: usize, image: v1::Image) -> Result<Image> {
    match (image.data.is_empty(), image.url.is_empty()) {
        (false, true) => {
            Ok(Image::Inline { media_type: image.media_type, data: STANDARD.encode(image.data) })
        }
        (true, false) => Ok(Image::Url { url: image.url }),
        _ => Err(Error::invalid(format!("message.images[{index}]"), "expected either data or a url")),
    }
}

impl From<MessageInput> for v1::MessageInput {
    fn from(input: MessageInput) -> Self {
        let text = text_of(&input.parts);
        let images = input.parts.into_iter().filter_map(|part| match part {
            Part::Image { image } => Some(image.into()),
            Part::Text { .. }
            | Part::Reasoning { .. }
            | Part::ToolUse { .. }
            | Part::ToolResult { .. }
            | Part::Summary { .. } => None,
        });
        Self {
            text,
            images: images.collect(),
            agent: input.agent.unwrap_or_default(),
            id: input.id.to_string(),
        }
    }
}

impl From<Image> for v1::Image {
    fn from(image: Image) -> Self {
        match image {
            // Stored images are valid base64.
            Image::Inline { media_type, data } => {
                Self { media_type, data: STANDARD.decode(data).unwrap_or_default(), url: String::new() }
            }
            Image::Url { url } => Self { url, ..Self::default() },
        }
    }
}

impl From<Message> for v1::Message {
    fn from(message: Message) -> Self {
        Self {
            id: message.id.to_string(),
            session_id: message.session.to_string(),
            run_id: message.run.map(|run| run.to_string()).unwrap_or_default(),
            role: message.role.as_str().to_owned(),
            parts: serde_json::to_string(&message.parts).unwrap_or_default(),
            created_at: Some(timestamp(message.created_at)),
            agent: message.agent.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use remuda_domain::Code;

    use super::*;

    fn input(text: &str, images: Vec<v1::Image>) -> v1::MessageInput {
        v1::MessageInput { text: text.into(), images, agent: "plan".into(), id: String::new() }
    }

    fn png(data: &[u8]) -> v1::Image {
        v1::Image { media_type: "image/png".into(), data: data.to_vec(), url: String::new() }
    }

    fn linked(url: &str) -> v1::Image {
        v1::Image { url: url.into(), ..v1::Image::default() }
    }

    #[test]
    fn message_survives_a_round_trip() {
        let images = vec![png(b"\x89PNG\0\xff"), linked("https://host/a.png")];
        let sent = input("look\nhere", images);
        let read = message_input(sent.clone()).unwrap();
        assert_eq!(read.parts[0], Part::text("look\nhere"));
        let back: v1::MessageInput = read.clone().into();
        assert_eq!(back, v1::MessageInput { id: read.id.to_string(), ..sent.clone() });
        assert_ne!(message_input(sent).unwrap().id, read.id, "each one has an id of its own");
        let wordless: v1::MessageInput = message_input(input("", vec![png(b"x")])).unwrap().into();
        assert_eq!((wordless.text.as_str(), wordless.images.len()), ("", 1));
    }

    #[test]
    fn bad_messages_name_the_field() {
        let rejected = |input: v1::MessageInput| {
            let error = message_input(input).unwrap_err();
            (error.code(), error.field().unwrap_or_default().to_owned())
        };
        let invalid = |field: &str| (Code::InvalidArgument, field.to_owned());
        let both = v1::Image { url: "https://host".into(), ..png(b"x") };
        assert_eq!(rejected(input("a", vec![png(b"x"), both])), invalid("message.images[1]"));
        assert_eq!(rejected(input("a", vec![png(b"")])), invalid("message.images[0]"));
        let named = v1::MessageInput { id: MessageId::new().to_string(), ..input("a", vec![]) };
        assert_eq!(rejected(named), invalid("message.id"));
        let large = (Code::TooLarge, "message".to_owned());
        assert_eq!(rejected(input(&"x".repeat(limits::MAX_INPUT_BYTES + 1), vec![])), large);
        assert_eq!(rejected(input("a", vec![png(&vec![0; limits::MAX_INPUT_BYTES])])), large);
        // A sixth of the limit, but six times as long in JSON.
        assert_eq!(rejected(input(&"\x01".repeat(limits::MAX_INPUT_BYTES / 5), vec![])), large);
    }

    #[test]
    fn text_size_is_its_escaped_length_in_json() {
        for text in ["", "plain", "\"\\\n\r\t", "\x01\x1f", "\u{1f40e} é"] {
            assert!(escaped_bytes(text) + 2 >= serde_json::to_string(text).unwrap().len(), "{text:?}");
        }
    }
}

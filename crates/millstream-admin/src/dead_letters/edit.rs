//! Changes of a message before it is replayed.

use bytes::Bytes;
use millstream_core::log::unique_id_of;
use millstream_core::wire::{self, Field, Fields, HEADER, KEY, PAYLOAD};
use millstream_core::{Error, ErrorKind, Limits, Result};

/// Headers that say how a payload is encoded: those of our layers, the first of which other programs use too.
const ENCODINGS: [&str; 3] = ["content-encoding", "encryption-key", "claim-check"];

/// Changes of a message before it is replayed. Unknown fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// New payload.
    pub payload: Option<Bytes>,
    /// New key, or `Some(None)` to remove it. A message that goes back to its group keeps the partition of the old key:
    /// order by the new key applies only to messages that are sent anew.
    pub key: Option<Option<Bytes>>,
    /// Headers to set; each value replaces all values of that header.
    pub set_headers: Vec<(String, Bytes)>,
    /// Headers to remove.
    pub remove_headers: Vec<String>,
}

impl Edit {
    /// Returns whether nothing is changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the fields of an entry after the change.
    #[must_use]
    pub fn apply(&self, body: &[Field]) -> Fields {
        let header = |name: &str| Bytes::from(format!("{HEADER}{name}"));
        let named = self.set_headers.iter().map(|(name, _)| name).chain(&self.remove_headers);
        let mut replaced: Vec<Bytes> = named.map(|name| header(name)).collect();
        let mut fields = Fields::with_capacity(body.len() + 2 + self.set_headers.len());
        // Its place says what it is: behind other fields the id would be in use no more.
        let (unique, body) = body.split_at(usize::from(unique_id_of(body).is_some()));
        fields.extend_from_slice(unique);
        if let Some(payload) = &self.payload {
            replaced.push(Bytes::from_static(PAYLOAD.as_bytes()));
            fields.push((Bytes::from_static(PAYLOAD.as_bytes()), payload.clone()));
        }
        if let Some(key) = &self.key {
            replaced.push(Bytes::from_static(KEY.as_bytes()));
            fields.extend(key.iter().map(|key| (Bytes::from_static(KEY.as_bytes()), key.clone())));
        }
        fields.extend(body.iter().filter(|(name, _)| !replaced.contains(name)).cloned());
        fields.extend(self.set_headers.iter().map(|(name, value)| (header(name), value.clone())));
        fields
    }

    /// Returns the fields of an entry after the change, if they are a message and what was set is within the limits. What stays as it
    /// was may be larger: the limits of the programs that use the topic are not known here.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] as for a send; [`ErrorKind::Decode`] if the fields are no message; [`ErrorKind::InvalidConfig`] for a
    /// new payload of a message whose header says how the old one is encoded, unless that header is set or removed, too.
    pub fn apply_within(&self, body: &[Field], limits: &Limits) -> Result<Fields> {
        let fields = self.apply(body);
        let message = wire::decode_body(&fields, &Limits::NONE);
        let message = message.map_err(|why| Error::new(ErrorKind::Decode, why.to_string()))?;
        let mut limits = *limits;
        if self.payload.is_none() {
            limits.payload = usize::MAX;
        } else if let Some(encoding) = ENCODINGS.iter().find(|name| {
            message.headers.get(name).is_some() && self.set_headers.iter().all(|(set, _)| set != *name)
        }) {
            let why = format!(
                "its header {encoding} says how the old payload is encoded: remove or set that header, too"
            );
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        }
        if self.key.is_none() {
            limits.key = usize::MAX;
        }
        // Headers are limited together: those of a message that was over the limit before stay over it.
        let was_within = wire::decode_body(body, &Limits::NONE)
            .is_ok_and(|it| it.headers.len() <= limits.headers && it.headers.size() <= limits.header_bytes);
        if self.set_headers.is_empty() || !was_within {
            (limits.headers, limits.header_bytes) = (usize::MAX, usize::MAX);
        }
        message.check(&limits)?;
        Ok(fields)
    }
}

#[cfg(test)]
mod tests {
    use millstream_core::{Envelope, Limits, wire};

    use super::*;

    fn read(fields: &[Field]) -> Envelope {
        wire::decode_body(fields, &Limits::default()).expect("a message")
    }

    #[test]
    fn what_is_not_named_stays() {
        let mut body =
            wire::encode(&Envelope::new("old").with_key("k").with_header("a", "1").with_header("b", "2"));
        body.push(("type".into(), "x".into()));
        assert_eq!(Edit::default().apply(&body), body);
        let edit = Edit {
            payload: Some("new".into()),
            set_headers: vec![("a".into(), "9".into()), ("c".into(), "3".into())],
            remove_headers: vec!["b".into(), "none".into()],
            ..Edit::default()
        };
        let edited = edit.apply(&body);
        let expected = Envelope::new("new").with_key("k").with_header("a", "9").with_header("c", "3");
        assert_eq!(read(&edited), expected);
        assert!(edited.contains(&("type".into(), "x".into())), "a field that nobody here knows");
        assert_eq!(read(&Edit { key: Some(None), ..Edit::default() }.apply(&body)).key, None);
        let key = Edit { key: Some(Some("z".into())), ..Edit::default() };
        assert_eq!(read(&key.apply(&body)).key, Some("z".into()));
    }

    #[test]
    fn a_unique_id_stays_in_front() {
        let id: Field = (wire::UNIQUE.into(), "a".into());
        let body: Fields = [id.clone()].into_iter().chain(wire::encode(&Envelope::new("old"))).collect();
        let edit = Edit { payload: Some("new".into()), key: Some(Some("k".into())), ..Edit::default() };
        let edited = edit.apply(&body);
        assert_eq!(edited[0], id);
        assert_eq!(edited.iter().filter(|(name, _)| name == wire::UNIQUE).count(), 1);
        assert_eq!(read(&edited[1..]), Envelope::new("new").with_key("k"));
    }

    #[test]
    fn only_what_is_set_has_limits() {
        let mut small = Limits::default().with_payload(3);
        (small.key, small.headers, small.header_bytes) = (1, 1, 4);
        let body = wire::encode(&Envelope::new("larger").with_key("keys").with_header("a", "1"));
        let set = |name: &str| Edit { set_headers: vec![(name.into(), "1".into())], ..Edit::default() };
        let header = set("a");
        for fits in [&Edit::default(), &header, &Edit { payload: Some("new".into()), ..header.clone() }] {
            assert_eq!(fits.apply_within(&body, &small).expect("it fits"), fits.apply(&body));
        }
        let payload = Edit { payload: Some("long".into()), ..Edit::default() };
        let key = Edit { key: Some(Some("ab".into())), ..Edit::default() };
        for (edit, why) in [
            (payload, "bytes of payload: 4, at most 3"),
            (key, "bytes of key: 2, at most 1"),
            (set("b"), "headers: 2, at most 1"),
        ] {
            let error = edit.apply_within(&body, &small).expect_err(why);
            assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::TooLarge, why));
        }
        let many = wire::encode(&Envelope::new("x").with_header("a", "1").with_header("c", "2"));
        set("b").apply_within(&many, &small).expect("it had more before");
        let none = header.apply_within(&[], &small).expect_err("no message");
        assert_eq!(none.kind(), ErrorKind::Decode);
    }

    #[test]
    fn a_new_payload_is_not_taken_for_an_encoded_one() {
        let body = wire::encode(&Envelope::new("frame").with_header("content-encoding", "zstd"));
        let edit = Edit { payload: Some("{}".into()), ..Edit::default() };
        let refused = edit.apply_within(&body, &Limits::NONE).expect_err("it would not be decoded");
        assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
        assert!(refused.to_string().contains("content-encoding"), "{refused}");
        let name = "content-encoding".to_owned();
        for also in [
            Edit { remove_headers: vec![name.clone()], ..edit.clone() },
            Edit { set_headers: vec![(name, "gzip".into())], ..edit },
            Edit { key: Some(None), ..Edit::default() },
        ] {
            also.apply_within(&body, &Limits::NONE).expect("it says what the payload is");
        }
    }

    #[test]
    fn what_was_no_message_becomes_one() {
        let twice: Fields = vec![(PAYLOAD.into(), "1".into()), (PAYLOAD.into(), "2".into())];
        let edit = Edit { payload: Some("3".into()), ..Edit::default() };
        assert_eq!(read(&edit.apply(&twice)), Envelope::new("3"));
        assert_eq!(read(&edit.apply(&[])), Envelope::new("3"));
    }
}

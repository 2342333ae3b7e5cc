//! Encryption with AES-256-GCM.

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use millstream_core::{BoxError, Envelope, Outcome};
use millstream_runtime::{Answer, Delivery, Layer, Next, ProducerLayer};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

/// Header with the id of the key.
const HEADER: &str = "encryption-key";
/// Longest id of a key, in bytes.
const MAX_ID: usize = 64;

/// Encrypts payloads with AES-256-GCM, and decrypts them: a layer of producers and of consumers.
///
/// A payload that is encrypted begins with a random nonce of 12 bytes and ends with a tag of 16; the header `encryption-key` names its key. The
/// name and the key of the message are authenticated too, so a payload cannot be put into a message with another key. Keys, headers and
/// sizes of messages are not encrypted.
///
/// To change the key, give all consumers the new one with [`also`](Self::also), then let producers use it, and remove the old one when
/// no message of it is left, dead letters included. With random nonces one key is good for 2^32 messages (NIST SP 800-38D).
///
/// A message that was changed makes a dead letter with the reason `rejected`, and so does one that is not encrypted, unless
/// [`allow_plain`](Self::allow_plain) is set. A message whose key is not known is retried: the key may come with the next deployment.
pub struct Encryption {
    current: String,
    keys: BTreeMap<String, LessSafeKey>,
    allow_plain: bool,
    random: SystemRandom,
}

/// Id of a key that is empty, longer than 64 bytes, used twice, or not of printable ASCII characters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the id of a key has 1 to 64 printable ASCII characters and is used once: {0:?}")]
pub struct InvalidKey(pub String);

impl Encryption {
    /// Encrypts and decrypts with this key, whose id stands in a header of each message.
    ///
    /// # Errors
    /// [`InvalidKey`].
    pub fn new(id: impl Into<String>, key: &[u8; 32]) -> Result<Self, InvalidKey> {
        let current = id.into();
        let new = Self {
            current: current.clone(),
            keys: BTreeMap::new(),
            allow_plain: false,
            random: SystemRandom::new(),
        };
        new.also(current, key)
    }

    /// Decrypts with this key too.
    ///
    /// # Errors
    /// [`InvalidKey`].
    pub fn also(mut self, id: impl Into<String>, key: &[u8; 32]) -> Result<Self, InvalidKey> {
        let id = id.into();
        let is_valid = (1..=MAX_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_valid || self.keys.contains_key(&id) {
            return Err(InvalidKey(id));
        }
        // The only error is a wrong length, which the type excludes.
        let Ok(key) = UnboundKey::new(&AES_256_GCM, key) else { return Err(InvalidKey(id)) };
        self.keys.insert(id, LessSafeKey::new(key));
        Ok(self)
    }

    /// Lets messages through that are not encrypted, while producers change over. Default: no.
    #[must_use]
    pub fn allow_plain(mut self) -> Self {
        self.allow_plain = true;
        self
    }

    fn decrypt(key: &LessSafeKey, id: &str, delivery: &Delivery<Bytes>) -> Option<Bytes> {
        let (nonce, sealed) = delivery.payload.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut sealed = sealed.to_vec();
        let length = key.open_in_place(nonce, Aad::from(aad(id, delivery.key())), &mut sealed).ok()?.len();
        sealed.truncate(length);
        Some(sealed.into())
    }
}

/// What is authenticated beside the payload: the id of the key, whether the message has a key, and that.
fn aad(id: &str, key: Option<&Bytes>) -> Vec<u8> {
    let mut aad = id.as_bytes().to_vec();
    // No byte of an id.
    aad.push(0);
    if let Some(key) = key {
        aad.push(1);
        aad.extend_from_slice(key);
    }
    aad
}

impl ProducerLayer for Encryption {
    fn send(&self, message: &mut Envelope) -> Result<(), BoxError> {
        let key = self.keys.get(&self.current).ok_or("the key is missing")?;
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).map_err(|_| "no random numbers")?;
        let mut sealed = message.payload.to_vec();
        let aad = Aad::from(aad(&self.current, message.key.as_ref()));
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut sealed)
            .map_err(|_| "the payload cannot be encrypted")?;
        let mut payload = BytesMut::with_capacity(NONCE_LEN + sealed.len());
        payload.put_slice(&nonce);
        payload.put_slice(&sealed);
        message.payload = payload.freeze();
        // A message that was made from another one, with its headers, may have that of another key.
        message.headers.remove(HEADER);
        message.headers.append(HEADER, self.current.clone());
        Ok(())
    }
}

#[async_trait]
impl Layer for Encryption {
    async fn handle(&self, mut delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
        let Some(id) = delivery.headers().get_str(HEADER) else {
            if self.allow_plain {
                return next.run(delivery).await;
            }
            return Outcome::dead_letter("the message is not encrypted").into();
        };
        let Some(key) = self.keys.get(id) else {
            return Outcome::retry("the message is encrypted with a key that is not known here").into();
        };
        match Self::decrypt(key, id, &delivery) {
            Some(plain) => delivery.payload = plain,
            None => return Outcome::dead_letter("the message cannot be decrypted: it was changed").into(),
        }
        next.run(delivery).await
    }
}

/// Without keys.
impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encryption")
            .field("current", &self.current)
            .field("keys", &self.keys.keys())
            .field("allow_plain", &self.allow_plain)
            .finish_non_exhaustive()
    }
}

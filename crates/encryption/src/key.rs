//! [`Key`] and [`Keys`]: what files are encrypted with.

use crate::EncryptionError;
use crate::error::random;
use chacha20poly1305::{KeyInit, XChaCha20Poly1305};
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use zeroize::Zeroizing;

const KEY_BYTES: usize = 32;

/// A key of 256 bits. Its bytes are overwritten when it is dropped.
#[derive(Clone)]
pub struct Key {
    bytes: Zeroizing<[u8; KEY_BYTES]>,
}

impl Key {
    /// A key that the caller has got from where keys are kept.
    ///
    /// ```
    /// let key = deuteron_encryption::Key::from_bytes([7; 32]);
    /// # let _ = key;
    /// ```
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Key {
        Key { bytes: Zeroizing::new(bytes) }
    }

    /// A key drawn from the system's randomness.
    ///
    /// # Errors
    /// [`EncryptionError::NoRandomness`].
    ///
    /// ```
    /// let key = deuteron_encryption::Key::random()?;
    /// assert_eq!(key.to_hexadecimal().len(), 64);
    /// # Ok::<(), deuteron_encryption::EncryptionError>(())
    /// ```
    pub fn random() -> Result<Key, EncryptionError> {
        Ok(Key::from_bytes(random()?))
    }

    /// As a line of a key file.
    ///
    /// ```
    /// let key = deuteron_encryption::Key::from_bytes([0x0f; 32]);
    /// assert!(key.to_hexadecimal().starts_with("0f0f"));
    /// ```
    pub fn to_hexadecimal(&self) -> Zeroizing<String> {
        let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
        Zeroizing::new(self.bytes.iter().flat_map(|&byte| [digit(byte >> 4), digit(byte & 15)]).collect())
    }

    fn from_hexadecimal(text: &str) -> Option<Key> {
        let digits = text.as_bytes();
        if digits.len() != 2 * KEY_BYTES {
            return None;
        }
        let mut key = Key::from_bytes([0; KEY_BYTES]);
        for (byte, pair) in key.bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            *byte = (digit(0)? << 4 | digit(1)?) as u8;
        }
        Some(key)
    }

    pub(crate) fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new((&*self.bytes).into())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Key(not shown)")
    }
}

/// The keys of a directory: new files are encrypted with the first, and those that are there with any.
#[derive(Clone, Debug)]
pub struct Keys {
    keys: Vec<Key>,
}

impl Keys {
    /// A single key.
    ///
    /// ```
    /// use deuteron_encryption::{Key, Keys};
    /// let keys = Keys::new(Key::random()?);
    /// # let _ = keys;
    /// # Ok::<(), deuteron_encryption::EncryptionError>(())
    /// ```
    pub fn new(current: Key) -> Keys {
        Keys { keys: vec![current] }
    }

    /// And one that was the first before, and is still that of some files.
    ///
    /// ```
    /// use deuteron_encryption::{Key, Keys};
    /// let keys = Keys::new(Key::random()?).and_former(Key::random()?);
    /// # let _ = keys;
    /// # Ok::<(), deuteron_encryption::EncryptionError>(())
    /// ```
    #[must_use]
    pub fn and_former(mut self, key: Key) -> Keys {
        self.keys.push(key);
        self
    }

    /// The keys in a file: 64 hexadecimal digits a line, the newest first.
    ///
    /// # Errors
    /// [`EncryptionError::KeyFile`], [`EncryptionError::NotAKey`]; [`EncryptionError::Exposed`] if its group or others may read it.
    ///
    /// ```
    /// # use std::os::unix::fs::PermissionsExt;
    /// # let scratch = tempfile::tempdir()?;
    /// # let path = scratch.path().join("key");
    /// use deuteron_encryption::{Key, Keys};
    /// std::fs::write(&path, Key::random()?.to_hexadecimal().as_bytes())?;
    /// std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    /// let keys = Keys::from_file(&path)?;
    /// # let _ = keys;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_file(path: impl AsRef<Path>) -> Result<Keys, EncryptionError> {
        let path = path.as_ref();
        let name = || path.display().to_string();
        let unreadable = |source| EncryptionError::KeyFile { path: name(), source };
        if std::fs::metadata(path).map_err(unreadable)?.mode() & 0o077 != 0 {
            return Err(EncryptionError::Exposed { path: name() });
        }
        let text = Zeroizing::new(std::fs::read_to_string(path).map_err(unreadable)?);
        let lines = text.lines().zip(1..).filter(|(text, _)| !text.trim().is_empty());
        let keys = lines.map(|(text, line)| {
            Key::from_hexadecimal(text.trim()).ok_or_else(|| EncryptionError::NotAKey { path: name(), line })
        });
        let keys: Vec<Key> = keys.collect::<Result<_, _>>()?;
        if keys.is_empty() {
            return Err(EncryptionError::NotAKey { path: name(), line: 1 });
        }
        Ok(Keys { keys })
    }

    /// The ciphers, in the order of the keys.
    pub(crate) fn ciphers(&self) -> Vec<XChaCha20Poly1305> {
        self.keys.iter().map(Key::cipher).collect()
    }
}

//! What a message says: its id, then filler. ASCII, so that systems that want JSON or text can have it.

/// The digits an id has in a payload.
const ID_DIGITS: usize = 16;

/// A message to produce.
#[derive(Debug, Clone)]
pub struct Message {
    /// Its number, unique in a run.
    pub id: u64,
    /// Where it goes.
    pub partition: u32,
    /// What it says.
    pub payload: Vec<u8>,
}

impl Message {
    /// A message of so many bytes. The filler differs from message to message, so that nothing on the
    /// way compresses it to nothing.
    pub fn new(id: u64, partition: u32, bytes: usize) -> Self {
        let mut payload = format!("{id:016x}").into_bytes();
        let mut state = id.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        while payload.len() < bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            payload.push(b'a' + u8::try_from(state % 26).unwrap_or(0));
        }
        Self {
            id,
            partition,
            payload,
        }
    }

    /// The id a payload begins with.
    pub fn id_of(payload: &[u8]) -> Option<u64> {
        let digits = std::str::from_utf8(payload.get(..ID_DIGITS)?).ok()?;
        u64::from_str_radix(digits, 16).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_its_size_and_remembers_its_id() {
        for (id, bytes) in [(0, 256), (77, 8192), (u64::MAX, 16)] {
            let message = Message::new(id, 0, bytes);
            assert_eq!(message.payload.len(), bytes);
            assert_eq!(Message::id_of(&message.payload), Some(id));
        }
        assert_eq!(Message::id_of(b"short"), None);
    }
}

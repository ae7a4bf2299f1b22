//! Bytes to values and back: two traits, a bounds-checked [`Reader`], and the bounded [`Text`] and [`BoundedList`] that
//! make every message valid, and of known greatest length, by construction.
//!
//! Integers are big-endian. Nothing is allocated by a number that a peer sent: a list grows with the items that came.

use std::fmt;
use std::ops::Deref;

use bytes::BufMut;

pub use crate::error::DecodeError;

/// What has a form in bytes.
pub trait Encode {
    /// The longest form, in bytes.
    const MAX_BYTES: usize;

    /// Appends its form to `out`, which has room for it.
    fn encode<B: BufMut>(&self, out: &mut B);
}

/// What can be read back.
pub trait Decode: Sized {
    /// Reads one value and checks it.
    ///
    /// # Errors
    /// Where the bytes are no such value.
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError>;

    /// Reads one value that fills `bytes` exactly.
    ///
    /// # Errors
    /// As [`Self::decode`], and [`DecodeError::TrailingBytes`].
    fn decode_all(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Reader::new(bytes);
        let value = Self::decode(&mut input)?;
        input.finish()?;
        Ok(value)
    }
}

/// A cursor over received bytes that never reads past their end.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// [`DecodeError::TrailingBytes`].
    pub const fn finish(self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            count => Err(DecodeError::TrailingBytes { count }),
        }
    }
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Encode for $type {
            const MAX_BYTES: usize = size_of::<$type>();

            fn encode<B: BufMut>(&self, out: &mut B) {
                out.put_slice(&self.to_be_bytes());
            }
        }

        impl Decode for $type {
            fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
                input.array().map(Self::from_be_bytes)
            }
        }
    )*};
}

integers!(u8, u16, u32, u64);

impl Encode for bool {
    const MAX_BYTES: usize = 1;

    fn encode<B: BufMut>(&self, out: &mut B) {
        out.put_u8(u8::from(*self));
    }
}

impl Decode for bool {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match u8::decode(input)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::BadValue { what: "a flag" }),
        }
    }
}

impl<const N: usize> Encode for [u8; N] {
    const MAX_BYTES: usize = N;

    fn encode<B: BufMut>(&self, out: &mut B) {
        out.put_slice(self);
    }
}

impl<const N: usize> Decode for [u8; N] {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        input.array()
    }
}

/// A flag, then the value where the flag is set.
impl<T: Encode> Encode for Option<T> {
    const MAX_BYTES: usize = 1 + T::MAX_BYTES;

    fn encode<B: BufMut>(&self, out: &mut B) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }
}

impl<T: Decode> Decode for Option<T> {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        bool::decode(input)?.then(|| T::decode(input)).transpose()
    }
}

/// Reads a `u16` length and refuses one above `limit`.
fn length(input: &mut Reader<'_>, limit: usize) -> Result<usize, DecodeError> {
    let length = usize::from(u16::decode(input)?);
    if length > limit { Err(DecodeError::TooLong { length, limit }) } else { Ok(length) }
}

/// Writes a length that a bounded type has kept below its limit, and every limit is below 65,536.
fn put_length<B: BufMut>(length: usize, out: &mut B) {
    u16::try_from(length).unwrap_or(u16::MAX).encode(out);
}

/// Up to `N` bytes of UTF-8 without control characters, so that it may be printed as it came. A `u16` length, then the
/// bytes.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Text<const N: usize>(String);

impl<const N: usize> Text<N> {
    /// `text` with control characters replaced by spaces, cut to `N` bytes between two characters.
    pub fn clipped(text: &str) -> Self {
        const { assert!(N <= u16::MAX as usize) };
        let mut clean = String::with_capacity(text.len().min(N));
        for c in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
            if clean.len() + c.len_utf8() > N {
                break;
            }
            clean.push(c);
        }
        Self(clean)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<const N: usize> From<&str> for Text<N> {
    /// As [`Self::clipped`].
    fn from(text: &str) -> Self {
        Self::clipped(text)
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl<const N: usize> Encode for Text<N> {
    const MAX_BYTES: usize = 2 + N;

    fn encode<B: BufMut>(&self, out: &mut B) {
        put_length(self.0.len(), out);
        out.put_slice(self.0.as_bytes());
    }
}

impl<const N: usize> Decode for Text<N> {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let length = length(input, N)?;
        match std::str::from_utf8(input.take(length)?) {
            Ok(text) if !text.contains(char::is_control) => Ok(Self(text.to_owned())),
            _ => Err(DecodeError::BadValue { what: "a text" }),
        }
    }
}

/// Up to `N` items. A `u16` count, then the items.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BoundedList<T, const N: usize>(Vec<T>);

impl<T, const N: usize> BoundedList<T, N> {
    /// The list, or the items back where there are more than `N`.
    ///
    /// # Errors
    /// The items that were given.
    pub fn new(items: Vec<T>) -> Result<Self, Vec<T>> {
        const { assert!(N <= u16::MAX as usize) };
        if items.len() <= N { Ok(Self(items)) } else { Err(items) }
    }

    /// The items.
    pub fn into_vec(self) -> Vec<T> {
        self.0
    }
}

impl<T, const N: usize> Default for BoundedList<T, N> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const N: usize> Deref for BoundedList<T, N> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Encode, const N: usize> Encode for BoundedList<T, N> {
    const MAX_BYTES: usize = 2 + N * T::MAX_BYTES;

    fn encode<B: BufMut>(&self, out: &mut B) {
        put_length(self.0.len(), out);
        self.0.iter().for_each(|item| item.encode(out));
    }
}

impl<T: Decode, const N: usize> Decode for BoundedList<T, N> {
    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let length = length(input, N)?;
        (0..length).map(|_| T::decode(input)).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(value: &impl Encode) -> Vec<u8> {
        let mut out = Vec::new();
        value.encode(&mut out);
        out
    }

    #[test]
    fn integers_are_big_endian_and_flags_are_strict() {
        assert_eq!(bytes(&0x0102_u16), [1, 2]);
        assert_eq!(bytes(&0x0102_0304_0506_0708_u64), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(u32::decode_all(&[0, 0, 1, 0]), Ok(256));
        assert_eq!(u32::decode_all(&[0, 0, 1]), Err(DecodeError::Truncated));
        assert_eq!(u8::decode_all(&[0, 0, 1]), Err(DecodeError::TrailingBytes { count: 2 }));
        assert_eq!(bool::decode_all(&[2]), Err(DecodeError::BadValue { what: "a flag" }));
        assert_eq!(Option::<u8>::decode_all(&[1, 9]), Ok(Some(9)));
        assert_eq!(Option::<u8>::decode_all(&[0]), Ok(None));
    }

    #[test]
    fn a_text_is_cut_between_characters_and_cleaned() {
        assert_eq!(Text::<5>::clipped("かえる").as_str(), "か");
        assert_eq!(Text::<5>::clipped("a\x1b[2J").as_str(), "a [2J");
        assert_eq!(
            Text::<3>::decode_all(&[0, 4, b'a', b'b', b'c', b'd']),
            Err(DecodeError::TooLong { length: 4, limit: 3 })
        );
        for bad in [&[0, 1, 0xff][..], &[0, 1, 0x1b], &[0, 2, 0xe3, 0x81]] {
            assert_eq!(Text::<3>::decode_all(bad), Err(DecodeError::BadValue { what: "a text" }), "{bad:?}");
        }
    }

    #[test]
    fn a_list_refuses_more_than_its_limit_in_both_directions() {
        assert_eq!(BoundedList::<u8, 2>::new(vec![1, 2, 3]), Err(vec![1, 2, 3]));
        let list = BoundedList::<u8, 2>::new(vec![1, 2]).unwrap();
        assert_eq!(bytes(&list), [0, 2, 1, 2]);
        assert_eq!(BoundedList::<u8, 2>::decode_all(&[0, 2, 1, 2]), Ok(list));
        assert_eq!(
            BoundedList::<u8, 2>::decode_all(&[0, 3, 1, 2, 3]),
            Err(DecodeError::TooLong { length: 3, limit: 2 })
        );
        assert_eq!(BoundedList::<u8, 2>::decode_all(&[0, 2, 1]), Err(DecodeError::Truncated));
    }
}

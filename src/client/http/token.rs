//! A bearer token that may live in a file which others replace.

use std::{path::PathBuf, time::Duration};

use http::HeaderValue;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{ClientError, Result, config::Token};

/// How long a token from a file is used before the file is looked at again.
const MAX_AGE: Duration = Duration::from_secs(10);

pub(super) struct TokenSource {
    token: Token,
    cached: Mutex<Option<(HeaderValue, Instant)>>,
}

impl TokenSource {
    pub(super) fn new(token: Token) -> Self {
        TokenSource {
            token,
            cached: Mutex::default(),
        }
    }

    /// `Bearer …`. If the file cannot be read, the last token goes on being used.
    pub(super) fn header(&self) -> Result<HeaderValue> {
        let mut cached = self.cached.lock();
        if let Some((value, at)) = &*cached
            && (at.elapsed() < MAX_AGE || matches!(self.token, Token::Value(_)))
        {
            return Ok(value.clone());
        }
        let value = match (&self.token, &*cached) {
            (Token::Value(token), _) => bearer(token)?,
            (Token::File(path), Some((old, _))) => read(path).unwrap_or_else(|_| old.clone()),
            (Token::File(path), None) => read(path)?,
        };
        *cached = Some((value.clone(), Instant::now()));
        Ok(value)
    }

    /// The server refused the token: read the file again before the next request.
    pub(super) fn expire(&self) {
        *self.cached.lock() = None;
    }
}

fn read(path: &PathBuf) -> Result<HeaderValue> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| ClientError::Credentials(format!("{}: {error}", path.display())))?;
    bearer(text.trim())
}

fn bearer(token: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
        ClientError::Credentials("the token has characters that no token has".into())
    })?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_token_file_is_read_again_after_ten_seconds_or_a_refusal() {
        let path = std::env::temp_dir().join(format!("token-{}", uuid::Uuid::new_v4()));
        std::fs::write(&path, "one\n").unwrap();
        let source = TokenSource::new(Token::File(path.clone()));
        assert_eq!(source.header().unwrap(), "Bearer one");
        std::fs::write(&path, "two\n").unwrap();
        assert_eq!(source.header().unwrap(), "Bearer one");
        tokio::time::advance(MAX_AGE).await;
        assert_eq!(source.header().unwrap(), "Bearer two");
        std::fs::write(&path, "three\n").unwrap();
        source.expire();
        assert_eq!(source.header().unwrap(), "Bearer three");
        std::fs::remove_file(&path).unwrap();
        tokio::time::advance(MAX_AGE).await;
        assert_eq!(source.header().unwrap(), "Bearer three");
    }
}

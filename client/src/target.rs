//! How a user names a server and an export: `HOST[:PORT]` and `HOST[:PORT]/EXPORT`.

use std::fmt;
use std::str::FromStr;

use kaeru_common::units::ExportName;
use kaeru_common::wire::PORT;

/// A server: a host name or address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its name or address, without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
}

/// An export of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The server.
    pub server: Server,
    /// The export.
    pub export: ExportName,
}

/// Why a text names nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" names no {what}: {reason}")]
pub struct BadTarget {
    text: String,
    what: &'static str,
    reason: String,
}

impl FromStr for Server {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Self, BadTarget> {
        let bad =
            |reason: &str| BadTarget { text: text.to_owned(), what: "server", reason: reason.to_owned() };
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or_else(|| bad("the bracket is not closed"))?;
                (host, rest.strip_prefix(':'))
            }
            // More than one colon is an IPv6 address without a port.
            None if text.matches(':').count() > 1 => (text, None),
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        if host.is_empty() || host.contains('/') || host.contains(char::is_whitespace) {
            return Err(bad("write HOST or HOST:PORT, such as server:17420"));
        }
        let port = match port {
            None => PORT,
            Some(port) => {
                port.parse().ok().filter(|&port| port != 0).ok_or_else(|| bad("its port is no number"))?
            }
        };
        Ok(Self { host: host.to_owned(), port })
    }
}

impl FromStr for Target {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Self, BadTarget> {
        let bad = |reason: String| BadTarget { text: text.to_owned(), what: "export", reason };
        let (server, export) = text
            .split_once('/')
            .ok_or_else(|| bad("write HOST/EXPORT; \"kaeru ls HOST\" lists the exports".into()))?;
        Ok(Self {
            server: server.parse()?,
            export: export
                .parse()
                .map_err(|error: kaeru_common::units::BadExportName| bad(error.to_string()))?,
        })
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.host.contains(':'), self.port) {
            (false, PORT) => f.write_str(&self.host),
            (true, PORT) => write!(f, "[{}]", self.host),
            (false, port) => write!(f, "{}:{port}", self.host),
            (true, port) => write!(f, "[{}]:{port}", self.host),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.server, self.export)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_exports_read_as_people_write_them() {
        for (text, host, port) in [
            ("server", "server", 17420),
            ("server:99", "server", 99),
            ("10.0.0.1:99", "10.0.0.1", 99),
            ("[::1]", "::1", 17420),
            ("[::1]:99", "::1", 99),
            ("fe80::1", "fe80::1", 17420),
        ] {
            let server: Server = text.parse().unwrap();
            assert_eq!((server.host.as_str(), server.port), (host, port), "{text}");
            assert_eq!(server.to_string().parse::<Server>().unwrap(), server);
        }
        let target: Target = "[::1]:99/scratch".parse().unwrap();
        assert_eq!(target.to_string(), "[::1]:99/scratch");
        assert_eq!(target.export.as_str(), "scratch");
    }

    #[test]
    fn what_names_nothing_says_how_to_write_it() {
        for (text, part) in [
            ("server", "HOST/EXPORT"),
            ("server/", "is empty"),
            ("/x", "HOST:PORT"),
            ("server:0/x", "port"),
            ("server:http/x", "port"),
            ("[::1/x", "bracket"),
            ("a/b/c", "/"),
        ] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}

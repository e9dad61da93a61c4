//! The text that LVM2 keeps its metadata in: sections in braces, and entries that are numbers, strings or lists.

use super::LvmError;

/// How deep sections may be nested; LVM2's metadata has four levels.
const MAX_DEPTH: usize = 16;

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Number(i64),
    /// A string, or a number with a fraction or exponent, as it is written.
    Text(String),
    List(Vec<Value>),
    Section(Section),
}

/// A section: entries in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) entries: Vec<(String, Value)>,
}

impl Section {
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.entries.iter().find(|(n, _)| n == name).map(|(_, value)| value)
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        match self.get(name) {
            Some(Value::Number(n)) => u64::try_from(*n).ok(),
            _ => None,
        }
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(super) fn sections(&self) -> impl Iterator<Item = (&str, &Section)> {
        self.entries.iter().filter_map(|(name, value)| match value {
            Value::Section(section) => Some((name.as_str(), section)),
            _ => None,
        })
    }

    pub(super) fn section(&self, name: &str) -> Option<&Section> {
        self.sections().find(|(n, _)| *n == name).map(|(_, section)| section)
    }
}

struct Parser<'a> {
    rest: &'a [u8],
    line: usize,
}

/// Parses metadata: the outermost section. Ends at the first NUL.
pub(super) fn parse(text: &[u8]) -> Result<Section, LvmError> {
    let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
    let mut parser = Parser { rest: &text[..end], line: 1 };
    parser.section(0)
}

impl Parser<'_> {
    fn error(&self, reason: impl Into<String>) -> LvmError {
        LvmError::Text { line: self.line, reason: reason.into() }
    }

    fn advance(&mut self, count: usize) {
        let (now, rest) = self.rest.split_at(count);
        self.line += now.iter().filter(|&&b| b == b'\n').count();
        self.rest = rest;
    }

    /// The next byte after spaces and comments, which is not consumed.
    fn peek(&mut self) -> Option<u8> {
        loop {
            match *self.rest.first()? {
                b' ' | b'\t' | b'\r' | b'\n' => self.advance(1),
                b'#' => self.advance(self.rest.iter().position(|&b| b == b'\n').unwrap_or(self.rest.len())),
                byte => return Some(byte),
            }
        }
    }

    fn expect(&mut self, byte: u8) -> Result<(), LvmError> {
        match self.peek() {
            Some(found) if found == byte => {
                self.advance(1);
                Ok(())
            }
            _ => Err(self.error(format!("expected '{}'", byte as char))),
        }
    }

    /// Entries up to the closing brace, or to the end of the outermost section.
    fn section(&mut self, depth: usize) -> Result<Section, LvmError> {
        if depth > MAX_DEPTH {
            return Err(self.error(format!("sections are nested deeper than {MAX_DEPTH}")));
        }
        let mut section = Section::default();
        loop {
            match self.peek() {
                None if depth == 0 => return Ok(section),
                Some(b'}') if depth > 0 => {
                    self.advance(1);
                    return Ok(section);
                }
                _ => {}
            }
            let name = self.name()?;
            let value = match self.peek() {
                Some(b'{') => {
                    self.advance(1);
                    Value::Section(self.section(depth + 1)?)
                }
                _ => {
                    self.expect(b'=')?;
                    self.value()?
                }
            };
            section.entries.push((name, value));
        }
    }

    fn name(&mut self) -> Result<String, LvmError> {
        self.peek();
        let part_of_name = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'+' | b'.' | b'/');
        let len = self.rest.iter().position(|b| !part_of_name(b)).unwrap_or(self.rest.len());
        if len == 0 {
            return Err(self.error("expected a name"));
        }
        let name = String::from_utf8_lossy(&self.rest[..len]).into_owned();
        self.advance(len);
        Ok(name)
    }

    fn value(&mut self) -> Result<Value, LvmError> {
        if self.peek() != Some(b'[') {
            return self.scalar();
        }
        self.advance(1);
        let mut list = Vec::new();
        loop {
            match self.peek() {
                Some(b']') => {
                    self.advance(1);
                    return Ok(Value::List(list));
                }
                Some(b',') if !list.is_empty() => self.advance(1),
                _ => list.push(self.scalar()?),
            }
        }
    }

    fn scalar(&mut self) -> Result<Value, LvmError> {
        match self.peek() {
            Some(b'"') => self.string(),
            Some(b'0'..=b'9' | b'-') => {
                let number = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'+' | b'.');
                let len = self.rest.iter().position(|b| !number(b)).unwrap_or(self.rest.len());
                let text = String::from_utf8_lossy(&self.rest[..len]).into_owned();
                self.advance(len);
                Ok(text.parse().map_or(Value::Text(text), Value::Number))
            }
            _ => Err(self.error("expected a number, a string or a list")),
        }
    }

    fn string(&mut self) -> Result<Value, LvmError> {
        let mut text = Vec::new();
        let mut at = 1;
        loop {
            match self.rest.get(at) {
                None => return Err(self.error("a string has no end")),
                Some(b'"') => break,
                Some(b'\\') => {
                    text.extend(self.rest.get(at + 1));
                    at += 2;
                }
                Some(&byte) => {
                    text.push(byte);
                    at += 1;
                }
            }
        }
        self.advance(at + 1);
        Ok(Value::Text(String::from_utf8_lossy(&text).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_values_and_comments() {
        let text = b"# made by hand\na { b = 1 # one\n c = [\"x\", \"y\\\"z\", -3]\n d { } }\ne=\"\"\n\0garbage{";
        let all = parse(text).unwrap();
        let a = all.section("a").unwrap();
        assert_eq!((a.number("b"), a.section("d").unwrap().entries.len()), (Some(1), 0));
        let list = vec![Value::Text("x".into()), Value::Text("y\"z".into()), Value::Number(-3)];
        assert_eq!(a.get("c"), Some(&Value::List(list)));
        assert_eq!(all.text("e"), Some(""));
    }

    #[test]
    fn what_is_wrong_has_its_line() {
        for (text, error) in [
            ("a {\nb = 1", "line 2: expected a name"),
            ("a\n\n= \"x", "line 3: a string has no end"),
            ("a = ?", "line 1: expected a number, a string or a list"),
            ("a = [1, ", "line 1: expected a number, a string or a list"),
            ("a b", "line 1: expected '='"),
            ("}", "line 1: expected a name"),
            ("a = [[1]]", "line 1: expected a number"),
        ] {
            let found = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(found.contains(error), "{text}: {found}");
        }
        assert!(parse("a{".repeat(100_000).as_bytes()).unwrap_err().to_string().contains("nested deeper"));
    }
}

//! A field of a JSON object, possibly nested.

use std::collections::HashMap;

use serde_json::value::RawValue;

/// The location of a field.
#[derive(Clone, Debug)]
pub(super) struct Field {
    typed: String,
    /// The names from the outermost object inwards.
    path: Vec<String>,
}

impl Field {
    /// Parses `customer`, `customer.id`, or `/customer/id` (a JSON pointer, which can also name fields with dots in
    /// their names).
    pub(super) fn new(typed: &str) -> Self {
        let path = match typed.strip_prefix('/') {
            Some(pointer) => {
                pointer.split('/').map(|part| part.replace("~1", "/").replace("~0", "~")).collect()
            }
            None => typed.split('.').map(str::to_owned).collect(),
        };
        Self { typed: typed.to_owned(), path }
    }

    /// Returns its value as text: the content of a string, or a number unchanged. The inner error is the reason why
    /// there is none.
    ///
    /// # Errors
    /// The fault in the object or in the value.
    pub(super) fn of(&self, object: &[u8]) -> Result<Result<String, String>, String> {
        let outside: &RawValue = serde_json::from_slice(object).map_err(|error| not_json(&error))?;
        if !outside.get().starts_with('{') {
            return Err(format!("not a JSON object to take {:?} from", self.typed));
        }
        // A field with exactly this name takes precedence over a nested one.
        let whole = beneath(outside, &self.typed);
        let found =
            whole.or_else(|| self.path.iter().try_fold(outside, |within, name| beneath(within, name)));
        let Some(value) = found else { return Ok(Err(format!("no field {:?}", self.typed))) };
        let value = value.get();
        match value.as_bytes().first() {
            Some(b'"') => serde_json::from_str(value)
                .map(Ok)
                .map_err(|error| format!("field {:?}: {error}", self.typed)),
            Some(b'-' | b'0'..=b'9') => Ok(Ok(value.to_owned())),
            Some(b'n') => Ok(Err(format!("field {:?} is null", self.typed))),
            _ => Err(format!("field {:?} is neither a string nor a number", self.typed)),
        }
    }
}

/// Returns a field of an object, or an item of a list.
fn beneath<'a>(within: &'a RawValue, name: &str) -> Option<&'a RawValue> {
    let text = within.get();
    match text.as_bytes().first()? {
        b'{' => serde_json::from_str::<HashMap<String, &RawValue>>(text).ok()?.remove(name),
        b'[' => serde_json::from_str::<Vec<&RawValue>>(text).ok()?.get(name.parse::<usize>().ok()?).copied(),
        _ => None,
    }
}

/// Formats the position of a JSON error. The line number is omitted, as it is always 1.
fn not_json(error: &serde_json::Error) -> String {
    format!("not JSON: {}", error.to_string().replace("at line 1 column", "at column"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(field: &str, object: &str) -> Result<Result<String, String>, String> {
        Field::new(field).of(object.as_bytes())
    }

    #[test]
    fn a_field_may_be_in_another_one() {
        let object = r#"{"a":{"b":[{"c":1.50},"x"],"d/e":"slash"},"f.g":"point","h":null}"#;
        for (field, value) in [
            ("a.b.0.c", "1.50"),
            ("/a/b/0/c", "1.50"),
            ("a.b.1", "x"),
            ("/a/d~1e", "slash"),
            ("f.g", "point"),
            ("/f.g", "point"),
        ] {
            assert_eq!(of(field, object), Ok(Ok(value.into())), "{field}");
        }
        assert_eq!(of("h", object), Ok(Err("field \"h\" is null".into())));
        for missing in ["x", "a.x", "a.b.2", "/a/b/c", "h.i", ""] {
            assert_eq!(of(missing, object), Ok(Err(format!("no field {missing:?}"))));
        }
        assert!(of("a", object).is_err_and(|it| it.contains("neither a string nor a number")));
        assert!(of("a", "[1]").is_err_and(|it| it.starts_with("not a JSON object")));
        assert!(of("a", "null").is_err_and(|it| it.starts_with("not a JSON object")));
        assert!(of("a", "hello").is_err_and(|it| it.starts_with("not JSON: ")));
    }
}

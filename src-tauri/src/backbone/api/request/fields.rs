//! The fields of a request's body, taken one by one; what is left at the end is refused by name.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::backbone::api::ApiError;

/// Longest piece of a client's own words in an error.
const QUOTE_CHARS: usize = 80;

/// What a body holds and nobody has taken yet. `null` counts as absent.
pub struct Fields(Map<String, Value>);

/// A value as an error shows it.
pub fn quote(value: &impl Display) -> String {
    let text = value.to_string();
    match text.char_indices().nth(QUOTE_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// "expected …, got …", naming the field.
pub fn wrong(field: &str, expected: &str, got: &impl Display) -> ApiError {
    ApiError::field(field.to_owned(), format!("{field}: expected {expected}, got {}", quote(got)))
}

impl Fields {
    /// Reads a body.
    pub fn read(body: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(other) => {
                let message = format!("the body: expected a JSON object, got {}", quote(&other));
                Err(ApiError::new(axum::http::StatusCode::BAD_REQUEST, "invalid_json", message))
            }
            Err(error) => {
                let message = format!("the body is not JSON: {error}");
                Err(ApiError::new(axum::http::StatusCode::BAD_REQUEST, "invalid_json", message))
            }
        }
    }

    /// The fields of an object within the body.
    pub fn within(name: &str, value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(fields) => Ok(Self(fields)),
            other => Err(wrong(name, "an object", &other)),
        }
    }

    /// A field, whatever it holds.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// A number within bounds.
    pub fn number(&mut self, name: &'static str, range: RangeInclusive<f64>) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_f64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number as f32)),
            None => Err(wrong(name, &format!("a number from {} to {}", range.start(), range.end()), &value)),
        }
    }

    /// A whole number within bounds.
    pub fn integer(&mut self, name: &'static str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        // Beyond 64 bits is as good as the largest: "as many as possible" is written in many ways.
        let number = value.as_i64().or_else(|| value.as_u64().map(|_| i64::MAX));
        match number.filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let expected = match *range.end() {
                    i64::MAX => format!("a whole number of at least {}", range.start()),
                    end => format!("a whole number from {} to {end}", range.start()),
                };
                Err(wrong(name, &expected, &value))
            }
        }
    }

    /// `true` or `false`.
    pub fn flag(&mut self, name: &'static str) -> Result<Option<bool>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| wrong(name, "true or false", &value))
    }

    /// A field that may hold nothing but `value`.
    pub fn only(&mut self, name: &'static str, value: impl Into<Value>) -> Result<(), ApiError> {
        let only = value.into();
        match self.take(name) {
            Some(other) if other != only => Err(wrong(name, &only.to_string(), &other)),
            _ => Ok(()),
        }
    }

    /// All that nobody took is refused, the first by name. `inside` names the object that holds the fields.
    pub fn finish(self, inside: Option<&str>) -> Result<(), ApiError> {
        let Some((name, _)) = self.0.into_iter().find(|(_, value)| !value.is_null()) else { return Ok(()) };
        let name = quote(&inside.map_or(name.clone(), |inside| format!("{inside}.{name}")));
        let message = format!("{name}: this server does not support the field; leave it out");
        Err(ApiError::field(name, message))
    }
}

//! A refusal in the API's error shape: which field, what was expected, what came.

use std::borrow::Cow;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::backbone::scheduler::{Refused, StreamError};

/// When a client that was refused for want of room may come again.
const RETRY_AFTER_S: u64 = 2;
/// Code of a request whose state is larger than all memory for states.
const STATE_MEMORY: &str = "state_memory";

/// Why a request is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// Stable code.
    pub code: &'static str,
    /// For people.
    pub message: String,
    /// The field that is wrong.
    pub param: Option<Cow<'static, str>>,
}

impl ApiError {
    /// A request whose field `param` cannot be served as it is.
    #[must_use]
    pub fn field(param: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::BAD_REQUEST, "invalid_request", message);
        Self { param: Some(param.into()), ..error }
    }

    /// Another reason.
    #[must_use]
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), param: None }
    }

    /// Something that is no client's fault.
    #[must_use]
    pub fn internal(error: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "generation", error.to_string())
    }

    /// The body of the answer.
    #[must_use]
    pub fn body(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "server_error",
        };
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}})
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let (status, code) = match refused {
            Refused::Full { .. } => (StatusCode::TOO_MANY_REQUESTS, "busy"),
            Refused::State { .. } => (StatusCode::TOO_MANY_REQUESTS, STATE_MEMORY),
            Refused::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        };
        Self::new(status, code, refused.to_string())
    }
}

impl From<StreamError> for ApiError {
    fn from(error: StreamError) -> Self {
        let (status, code) = match error {
            StreamError::Step(ref error) if error.has_no_holder() => (StatusCode::SERVICE_UNAVAILABLE, "no_holder"),
            StreamError::Step(_) => (StatusCode::INTERNAL_SERVER_ERROR, "generation"),
            StreamError::Reader(_) => (StatusCode::REQUEST_TIMEOUT, "slow_reader"),
            StreamError::Queue(_) => (StatusCode::TOO_MANY_REQUESTS, "busy"),
            StreamError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "cancelled"),
        };
        Self::new(status, code, error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.body())).into_response();
        let headers = response.headers_mut();
        match self.status {
            // What never fits does not fit later.
            StatusCode::TOO_MANY_REQUESTS if self.code == STATE_MEMORY => {}
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}

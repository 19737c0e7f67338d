//! `POST callbacks/status` and `POST callbacks/system-info`.

use axum::body::Body;
use axum::http::Response;

use super::body::Posted;
use super::errors::ApiError;
use super::{Request, ok};
use crate::controller::{Controller, StatusUpdate, SystemInfoUpdate};

pub(crate) fn status(
    controller: &Controller,
    name: &str,
    request: &Request<'_>,
) -> Result<Response<Body>, ApiError> {
    let posted = Posted::read(request.body)?;
    let update = StatusUpdate {
        status: posted.text("status")?,
        message: posted.text("message")?,
        agent_id: posted.integer("agent_id")?.unwrap_or(0),
    };
    controller.update_status(name, update, request.at)?;
    Ok(accepted())
}

pub(crate) fn system_info(
    controller: &Controller,
    name: &str,
    request: &Request<'_>,
) -> Result<Response<Body>, ApiError> {
    let posted = Posted::read(request.body)?;
    let update = SystemInfoUpdate {
        os_name: posted.text("os_name")?,
        os_version: posted.text("os_version")?,
        agent_id: posted.integer("agent_id")?,
    };
    controller.update_system_info(name, update)?;
    Ok(accepted())
}

/// An empty body that calls itself JSON.
fn accepted() -> Response<Body> {
    ok("application/json", Body::empty())
}

//! Turns a chosen fault into a reply and a plan for the connection.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use axum::http::{HeaderName, HeaderValue, Response, StatusCode};
use bytes::Bytes;
use futures_util::StreamExt;

use super::control::{Control, End};
use super::fault::FaultKind;

const PORTAL: &str = "<!DOCTYPE html>\n<html><head><title>Log in to the network</title></head>\
<body><form action=\"/login\" method=\"post\"><input name=\"user\"></form></body></html>\n";

/// What a fault does before the handler.
pub(crate) enum Before {
    /// Run the handler; the fault comes afterwards, if at all.
    RunHandler,
    /// Answer this, or end the connection as armed; the handler does not run.
    Answer(Response<Body>),
    /// Never answer.
    Hang,
}

/// The fault's share before GARM's handler.
pub(crate) async fn before(kind: &FaultKind, control: &Control) -> Before {
    match kind {
        FaultKind::Status { code, body, headers } => {
            Before::Answer(answer(*code, body.clone().into(), headers))
        }
        FaultKind::RedirectTo(url) => Before::Answer(redirect(302, url)),
        FaultKind::RedirectWith(code, url) => Before::Answer(redirect(*code, url)),
        FaultKind::CaptivePortal => {
            let kind = ("content-type".to_owned(), "text/html; charset=utf-8".to_owned());
            Before::Answer(answer(200, PORTAL.into(), &[kind]))
        }
        FaultKind::Delay(time) => {
            tokio::time::sleep(*time).await;
            Before::RunHandler
        }
        FaultKind::HangForever => Before::Hang,
        FaultKind::ResetBeforeReply => {
            control.end_now(End::Reset);
            Before::Answer(Response::default())
        }
        FaultKind::EmptyReply => {
            control.end_now(End::Close);
            Before::Answer(Response::default())
        }
        FaultKind::Garbage(bytes) => {
            control.raw(Bytes::copy_from_slice(bytes), End::Close);
            Before::Answer(Response::default())
        }
        FaultKind::ResetAfter(_)
        | FaultKind::CloseAfter(_)
        | FaultKind::EmptyReplyAfterApplying
        | FaultKind::WrongLength(_)
        | FaultKind::SlowBody { .. }
        | FaultKind::FlipByte(_)
        | FaultKind::Body(_) => Before::RunHandler,
    }
}

/// The fault's share after GARM's handler.
pub(crate) async fn after(
    kind: &FaultKind,
    control: &Control,
    reply: Response<Body>,
) -> Response<Body> {
    match kind {
        FaultKind::ResetAfter(bytes) => control.end_after_body(*bytes, End::Reset),
        FaultKind::CloseAfter(bytes) => control.end_after_body(*bytes, End::Close),
        FaultKind::EmptyReplyAfterApplying => control.end_now(End::Close),
        FaultKind::WrongLength(declared) => return wrong_length(*declared, control, reply).await,
        FaultKind::SlowBody { bytes_per_sec } => return slow(*bytes_per_sec, reply).await,
        FaultKind::FlipByte(offset) => return flip(*offset, reply).await,
        FaultKind::Body(bytes) => {
            let mut parts = reply.into_parts().0;
            parts.headers.remove(CONTENT_LENGTH);
            return Response::from_parts(parts, Body::from(bytes.clone()));
        }
        _ => {}
    }
    reply
}

fn answer(code: u16, body: Bytes, headers: &[(String, String)]) -> Response<Body> {
    let mut reply = Response::new(Body::from(body));
    *reply.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::IM_A_TEAPOT);
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
            reply.headers_mut().append(name, value);
        }
    }
    reply
}

fn redirect(code: u16, url: &str) -> Response<Body> {
    answer(code, Bytes::new(), &[(LOCATION.to_string(), url.to_owned())])
}

async fn whole(body: Body) -> Bytes {
    to_bytes(body, usize::MAX).await.unwrap_or_default()
}

async fn wrong_length(declared: u64, control: &Control, reply: Response<Body>) -> Response<Body> {
    let (parts, body) = reply.into_parts();
    let body = whole(body).await;
    let mut raw = format!("HTTP/1.1 {}\r\n", parts.status).into_bytes();
    if let Some(kind) = parts.headers.get(CONTENT_TYPE) {
        raw.extend_from_slice(b"content-type: ");
        raw.extend_from_slice(kind.as_bytes());
        raw.extend_from_slice(b"\r\n");
    }
    raw.extend_from_slice(format!("content-length: {declared}\r\n\r\n").as_bytes());
    raw.extend_from_slice(&body);
    control.raw(raw.into(), End::Close);
    let mut marker = Response::new(Body::empty());
    *marker.status_mut() = parts.status;
    marker
}

/// Ten pieces a second, the declared length kept.
async fn slow(bytes_per_sec: u64, reply: Response<Body>) -> Response<Body> {
    const PIECES_PER_SEC: u64 = 10;
    let (mut parts, body) = reply.into_parts();
    let body = whole(body).await;
    parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    let rate = bytes_per_sec.max(1);
    let piece = usize::try_from((rate / PIECES_PER_SEC).max(1)).unwrap_or(usize::MAX);
    let pause = Duration::from_millis(1000 / rate.clamp(1, PIECES_PER_SEC));
    let pieces = futures_util::stream::unfold((body, false), move |(mut rest, waits)| async move {
        if rest.is_empty() {
            return None;
        }
        if waits {
            tokio::time::sleep(pause).await;
        }
        let next = rest.split_to(piece.min(rest.len()));
        Some((Ok::<_, std::convert::Infallible>(next), (rest, true)))
    });
    Response::from_parts(parts, Body::from_stream(pieces.boxed()))
}

async fn flip(offset: u64, reply: Response<Body>) -> Response<Body> {
    let (parts, body) = reply.into_parts();
    let mut body = Vec::from(whole(body).await);
    let at = usize::try_from(offset).unwrap_or(usize::MAX);
    if let Some(byte) = body.get_mut(at) {
        *byte ^= 0xff;
    }
    Response::from_parts(parts, Body::from(body))
}

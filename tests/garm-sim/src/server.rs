//! The way of a call: read, recorded, met by a fault or not, answered by GARM or the forge.

use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Response};
use bytes::Bytes;

use crate::api::{self, path};
use crate::controller::Controller;
use crate::endpoint::Endpoint;
use crate::forge::Forge;
use crate::record::{Authorization, Call, Host, Record};
use crate::wire::control::{Control, End};
use crate::wire::fault::{Fault, FaultKind};
use crate::wire::listener::Connection;
use crate::wire::shape::{self, Before};
use crate::wire::storm::Weather;

/// Everything that handlers, and the handle that tests hold, share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) controller: Arc<Controller>,
    pub(crate) forge: Arc<Forge>,
    pub(crate) record: Arc<Record>,
    pub(crate) faults: Mutex<Vec<Fault>>,
    pub(crate) storm: Mutex<Option<Weather>>,
}

#[derive(Clone)]
struct Site {
    shared: Arc<Shared>,
    host: Host,
}

/// One host's service.
pub(crate) fn router(shared: Arc<Shared>, host: Host) -> Router {
    Router::new().fallback(serve).with_state(Site { shared, host })
}

impl Shared {
    fn fault(
        &self,
        endpoint: Endpoint,
        posted: Option<&str>,
        instance: Option<&str>,
    ) -> Option<FaultKind> {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let mut met = None;
        for fault in faults.iter_mut() {
            // Every fault counts, so that each one's numbers stay what the test wrote.
            let kind = fault.meets(endpoint, posted, instance);
            met = met.or(kind);
        }
        met.or_else(|| {
            let mut storm = self.storm.lock().unwrap_or_else(PoisonError::into_inner);
            storm.as_mut()?.meets(endpoint, posted)
        })
    }
}

async fn serve(
    State(site): State<Site>,
    ConnectInfo(Connection(control)): ConnectInfo<Connection>,
    request: Request,
) -> Response<Body> {
    control.clear();
    let (parts, body) = request.into_parts();
    // Read whole, so that closing without an answer sends a FIN and not a reset.
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let route = match site.host {
        Host::Garm => path::route(parts.uri.path()),
        Host::Forge => crate::forge::route(parts.uri.path()),
    };
    let shared = &site.shared;
    let bearer = authorization(&parts.headers);
    let (kind, instance) = shared.authorization_kind(bearer.as_deref());
    let call = call(&site, &control, &parts, &body, route.endpoint, kind, instance);
    let posted = call.posted_status();
    let fault = shared.fault(route.endpoint, posted.as_deref(), call.instance.as_deref());
    let at = call.at;
    let index = shared.record.begin(Call { fault: fault.as_ref().map(FaultKind::label), ..call });

    let (fault, head_only) = (fault.as_ref(), parts.method == Method::HEAD);
    if let Some(kind) = fault {
        match shape::before(kind, &control).await {
            Before::RunHandler => {}
            Before::Hang => std::future::pending().await,
            Before::Answer(reply) => {
                let silent = matches!(
                    kind,
                    FaultKind::ResetBeforeReply | FaultKind::EmptyReply | FaultKind::Garbage(_)
                );
                let status = (!silent).then(|| reply.status().as_u16());
                shared.record.change(index, |call| call.status = status);
                return reply;
            }
        }
    }
    let reply = match site.host {
        Host::Garm => {
            let request = api::Request {
                method: &parts.method,
                route: &route,
                query: parts.uri.query().unwrap_or_default(),
                authorization: bearer.as_deref(),
                body: &body,
                at,
            };
            let Ok(reply) = api::answer(&shared.controller, &request) else {
                // The handler panicked: Go closes the connection.
                control.end_now(End::Close);
                shared.record.change(index, |call| {
                    call.fault.get_or_insert_with(|| "panic".into());
                });
                return Response::default();
            };
            reply
        }
        Host::Forge => {
            shared.forge.answer(&shared.controller, &shared.record, &route, &parts, &body)
        }
    };
    let lost = matches!(fault, Some(FaultKind::EmptyReplyAfterApplying));
    let status = (!lost).then(|| reply.status().as_u16());
    let reply = match fault {
        Some(kind) if !head_only || lost => shape::after(kind, &control, reply).await,
        _ => reply,
    };
    shared.record.change(index, |call| call.status = status);
    reply
}

fn authorization(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(AUTHORIZATION)?;
    Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
}

impl Shared {
    fn authorization_kind(&self, header: Option<&str>) -> (Authorization, Option<String>) {
        let Some(header) = header else {
            return (Authorization::None, None);
        };
        let bearer = header.rsplit(' ').next().unwrap_or_default();
        if let Some(name) = self.controller.owner_of(bearer) {
            return (Authorization::InstanceToken(name.clone()), Some(name));
        }
        let known = self
            .controller
            .lock()
            .iter()
            .any(|one| one.spec.temp_download_token.as_deref() == Some(bearer));
        if known { (Authorization::DownloadToken, None) } else { (Authorization::Other, None) }
    }
}

fn call(
    site: &Site,
    control: &Control,
    parts: &Parts,
    body: &Bytes,
    endpoint: Endpoint,
    authorization: Authorization,
    instance: Option<String>,
) -> Call {
    let headers = parts
        .headers
        .iter()
        .map(|(name, value)| {
            let value = match &authorization {
                kind if *name == AUTHORIZATION => format!("{kind:?}"),
                _ => String::from_utf8_lossy(value.as_bytes()).into_owned(),
            };
            (name.as_str().to_owned(), value)
        })
        .collect();
    Call {
        at: site.shared.record.now(),
        connection: control.id(),
        host: site.host,
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        endpoint,
        status: None,
        headers,
        authorization,
        body: recorded_body(endpoint, body),
        instance,
        fault: None,
    }
}

/// The body as text; what a runner registers with is a token too.
fn recorded_body(endpoint: Endpoint, body: &Bytes) -> String {
    let text = String::from_utf8_lossy(body);
    if endpoint != Endpoint::Forge {
        return text.into_owned();
    }
    let lines: Vec<&str> = text
        .lines()
        .map(|line| match line.split_once('=') {
            Some(("token", _)) => "token=<token>",
            _ => line,
        })
        .collect();
    lines.join("\n")
}

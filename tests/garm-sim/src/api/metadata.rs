//! `GET metadata/*`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use axum::body::Body;
use axum::http::header::{CONTENT_DISPOSITION, HeaderValue};
use axum::http::{Response, StatusCode};
use serde::Serialize;
use serde_json::Value;

use super::body::go_json;
use super::errors::ApiError;
use super::path::query_value;
use super::{Request, ok};
use crate::api::certificates;
use crate::controller::Controller;
use crate::controller::instance::InstanceState;
use crate::controller::tools::{AGENT_PROGRAM, AgentTool, RunnerTools};
use crate::endpoint::Endpoint;
use crate::options::ForgeType;

#[derive(Serialize)]
struct RunnerMetadata<'a> {
    metadata_access: Access,
    forge_type: &'static str,
    runner_registration_url: String,
    runner_name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    runner_labels: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extra_specs: Option<&'a Value>,
    agent_mode: bool,
    jit_enabled: bool,
    runner_tools: RunnerTools,
}

#[derive(Serialize)]
#[expect(clippy::struct_field_names, reason = "the names are the protocol's")]
struct Access {
    callback_url: String,
    metadata_url: String,
    agent_url: String,
}

#[derive(Serialize)]
struct ToolList {
    total_count: usize,
    pages: usize,
    current_page: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    previous_page: Option<u64>,
    results: Option<Vec<AgentTool>>,
}

#[derive(Serialize)]
struct CertificateBundle {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    root_certificates: BTreeMap<String, String>,
}

type Answer = Result<Response<Body>, ApiError>;

/// Every metadata endpoint but `install-script`.
pub(crate) fn answer(controller: &Controller, name: &str, request: &Request<'_>) -> Answer {
    let argument = &request.route.argument;
    match request.route.endpoint {
        Endpoint::RegistrationToken => {
            let token = controller.take_registration_token(name, request.at)?;
            return Ok(ok("application/json", token));
        }
        Endpoint::CertBundle => return Ok(cert_bundle(controller)),
        _ => {}
    }
    controller
        .with(name, |one| match request.route.endpoint {
            Endpoint::RunnerMetadata => runner_metadata(controller, one),
            Endpoint::ServiceName => Ok(ok("text/plain", one.spec.entity.service_name())),
            Endpoint::UnitFile => {
                let user = query_value(request.query, "runAsUser").unwrap_or_default();
                Ok(ok("text/plain", unit_file(one, &user)))
            }
            Endpoint::AgentTools => Ok(tool_list(controller, one, request.query)),
            Endpoint::AgentTool => {
                let tool = stored_tool(controller, one, argument, "")?;
                Ok(ok("application/json", go_json(&tool.without_source())))
            }
            Endpoint::AgentToolDownload => {
                stored_tool(controller, one, argument, "failed to validate tools request: ")?;
                Ok(ok("text/plain; charset=utf-8", AGENT_PROGRAM))
            }
            _ => credentials(one, argument),
        })
        .unwrap_or(Err(ApiError::AuthenticationFailed))
}

fn runner_metadata(controller: &Controller, one: &InstanceState) -> Answer {
    let runner_tools = controller.runner_tools(one).ok_or(ApiError::ServerError)?;
    let urls = &controller.urls;
    let metadata = RunnerMetadata {
        metadata_access: Access {
            callback_url: urls.callback(),
            metadata_url: urls.metadata(),
            agent_url: format!("{}/agent", urls.garm),
        },
        forge_type: one.spec.forge.word(),
        runner_registration_url: one.registration_url(urls),
        runner_name: one.runner_name(),
        runner_labels: one.labels(&controller.uuid),
        extra_specs: one.spec.extra_specs.as_ref(),
        agent_mode: false,
        jit_enabled: one.jit.is_some(),
        runner_tools,
    };
    Ok(ok("application/json", go_json(&metadata)))
}

fn credentials(one: &InstanceState, file: &str) -> Answer {
    let Some(jit) = &one.jit else {
        return Err(ApiError::NotFound("instance not configured for JIT".into()));
    };
    let dotted = format!(".{file}");
    let Some(data) = jit.file(&dotted) else {
        return Err(ApiError::NotFound(format!("could not find file {dotted:?}")));
    };
    // No slash in the type: not a valid media type, and what GARM sends.
    let mut reply = ok("octet-stream", data.to_owned());
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename={dotted}")) {
        reply.headers_mut().insert(CONTENT_DISPOSITION, value);
    }
    Ok(reply)
}

fn cert_bundle(controller: &Controller) -> Response<Body> {
    let pem = controller.options.ca_bundle.as_deref().unwrap_or_default();
    let bundle =
        CertificateBundle { root_certificates: certificates::by_serial(pem).unwrap_or_default() };
    ok("application/json", go_json(&bundle))
}

fn unit_file(one: &InstanceState, user: &str) -> String {
    let user = if user.is_empty() { "runner" } else { user };
    let (title, folder, command) = match one.spec.forge {
        ForgeType::Github => ("GitHub Actions Runner", "actions-runner", "runsvc.sh"),
        ForgeType::Gitea => ("Gitea Runner", "gitea-runner", "gitea-runner daemon --once"),
    };
    let mut proxy = String::new();
    let settings = &one.spec.proxy;
    for (name, value) in [
        ("HTTP_PROXY", &settings.http),
        ("HTTPS_PROXY", &settings.https),
        ("NO_PROXY", &settings.none),
    ] {
        if !value.is_empty() {
            let value = value.replace('%', "%%");
            let lower = name.to_lowercase();
            for name in [name, &lower] {
                let _ = writeln!(proxy, "Environment=\"{name}={value}\"");
            }
        }
    }
    let restart = match one.spec.forge {
        ForgeType::Github => "",
        ForgeType::Gitea => "Restart=always\n",
    };
    format!(
        "[Unit]\nDescription={title} ({service})\nAfter=network.target\n\n\
         [Service]\nExecStart=/home/{user}/{folder}/{command}\nUser={user}\n\
         WorkingDirectory=/home/{user}/{folder}\n{proxy}\
         KillMode=process\nKillSignal=SIGTERM\nTimeoutStopSec=5min\n{restart}\n\
         [Install]\nWantedBy=multi-user.target\n",
        service = one.spec.entity.service_name(),
    )
}

/// At most one program, so that every page but the first is empty. The release index is put on the
/// last page, and on all that come after it.
fn tool_list(controller: &Controller, one: &InstanceState, query: &str) -> Response<Body> {
    let asked = query_value(query, "page").and_then(|page| page.parse().ok());
    let page = asked.unwrap_or(1).max(1);
    let tool = controller.agent_tool(one);
    // An entry of the release index does not count.
    let counted = tool.iter().filter(|tool| tool.is_local()).count();
    let list = ToolList {
        total_count: counted,
        pages: counted,
        current_page: page,
        previous_page: (page > 1).then(|| page - 1),
        results: tool.filter(|tool| page == 1 || !tool.is_local()).map(|tool| vec![tool]),
    };
    ok("application/json", go_json(&list))
}

fn stored_tool(
    controller: &Controller,
    one: &InstanceState,
    id: &str,
    during: &str,
) -> Result<AgentTool, ApiError> {
    let number = id.parse::<u64>().ok().filter(|_| !id.starts_with('+'));
    let Some(number) = number else {
        let text = "invalid objectID: invalid object ID; must be a number";
        return Err(ApiError::BadRequest(text.into()));
    };
    match controller.agent_tool(one) {
        Some(tool) if tool.is_local() && number == 1 => Ok(tool),
        _ => {
            let why = format!("failed to list files: could not find file object with ID: {number}");
            Err(ApiError::NotFound(format!("{during}{why}")))
        }
    }
}

/// `install-script`; `None` when GARM's handler would panic.
pub(crate) fn install_script(controller: &Controller, name: &str) -> Option<Answer> {
    let found = controller.with(name, |one| {
        let specs = one.spec.extra_specs.as_ref();
        let own = specs.and_then(|specs| specs.get("runner_install_template"));
        let template = match own {
            Some(Value::String(text)) => {
                use base64::Engine;
                let decoded = base64::engine::general_purpose::STANDARD.decode(text);
                match decoded.ok().and_then(|bytes| String::from_utf8(bytes).ok()) {
                    Some(template) => Some(template),
                    None => return Some(Err(ApiError::ServerError)),
                }
            }
            Some(_) => return Some(Err(ApiError::ServerError)),
            None => None,
        };
        if template.is_none() && !controller.options.template {
            let text = "pool or scale set has no template associated and no template is defined \
                        in extra_specs";
            return Some(Err(ApiError::Conflict(text.into())));
        }
        if controller.runner_tools(one).is_none() {
            return Some(Err(ApiError::ServerError));
        }
        match specs.and_then(|specs| specs.get("enable_boot_debug")) {
            None | Some(Value::Bool(_)) => {}
            // GARM's bug: a type assertion on anything else panics.
            Some(_) => return None,
        }
        let script = template.unwrap_or_else(|| {
            format!(
                "#!/bin/sh\n# Simulated install script.\nset -e\nCALLBACK_URL=\"{}\"\n\
                 METADATA_URL=\"{}\"\nBEARER_TOKEN=\"{}\"\nexit 0\n",
                controller.urls.callback(),
                controller.urls.metadata(),
                one.token
            )
        });
        let mut reply = ok("text/plain", script);
        *reply.status_mut() = StatusCode::OK;
        Some(Ok(reply))
    });
    found.unwrap_or(Some(Err(ApiError::AuthenticationFailed)))
}

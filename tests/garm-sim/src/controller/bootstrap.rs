//! The JSON that GARM gives a provider on standard input.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::Controller;
use super::instance::InstanceState;

impl Controller {
    /// The bootstrap data of an instance, `runner_install_template` included.
    pub(crate) fn bootstrap(&self, one: &InstanceState) -> Value {
        let labels = one.labels(&self.uuid);
        let mut extra_specs = match &one.spec.extra_specs {
            Some(Value::Object(specs)) => specs.clone(),
            _ => serde_json::Map::new(),
        };
        let wrapper = format!(
            "#!/bin/sh\ncurl -fsS -H 'Authorization: Bearer {}' {}/install-script | sh\n",
            one.token,
            self.urls.metadata()
        );
        extra_specs
            .entry("runner_install_template")
            .or_insert_with(|| STANDARD.encode(wrapper).into());
        let proxy = &one.spec.proxy;
        json!({
            "name": one.name,
            "tools": self.all_runner_tools(one),
            "repo_url": one.registration_url(&self.urls),
            "callback-url": self.urls.callback(),
            "metadata-url": self.urls.metadata(),
            "instance-token": one.token,
            "ssh-keys": null,
            "extra_specs": extra_specs,
            "github-runner-group": one.spec.group,
            "ca-cert-bundle": STANDARD.encode(self.ca_bundle()),
            "arch": one.spec.arch,
            "os_type": one.spec.os_type,
            "flavor": "sim-flavor",
            "image": "sim-image",
            "labels": if labels.is_empty() { Value::Null } else { labels.into() },
            "pool_id": one.pool_id,
            "user_data_options": {
                "disable_updates_on_boot": false,
                "extra_packages": null,
                "enable_boot_debug": false,
            },
            "jit_config_enabled": one.jit.is_some(),
            "proxy_config": {
                "http_proxy": proxy.http,
                "https_proxy": proxy.https,
                "no_proxy": proxy.none,
            },
        })
    }

    /// The endpoint's CA and the controller's, in one PEM.
    fn ca_bundle(&self) -> String {
        let endpoint = self.options.ca_bundle.clone().unwrap_or_default();
        match &self.ca_pem {
            Some(own) if !endpoint.contains(own.trim()) => format!("{endpoint}{own}"),
            _ => endpoint,
        }
    }
}

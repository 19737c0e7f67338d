//! The first words with GARM, and what becomes of a boot when they go wrong.

use std::time::{Duration, Instant};

use garm_sim::{
    ArchiveSpec, Authorization, Endpoint, Fault, FaultKind, Host, Instance, InstanceSpec,
    RunnerScript, Sim, SimOptions,
};

use crate::support::{
    Boot, LONG, both_kinds, calls_to, failures, garm_calls, good, one_job, statuses, wait_until,
};

fn sim_of(options: SimOptions) -> Sim {
    Sim::start(SimOptions { archive: ArchiveSpec::scripted(one_job()), ..options })
}

fn of_bootstrap_file(instance: &Instance) -> Boot {
    let boot = Boot::bare();
    let file = boot.file("bootstrap.json", instance.bootstrap_json());
    boot.flag("bootstrap-file", file)
}

#[test]
fn a_garm_that_does_not_know_us_for_three_seconds_is_waited_for() {
    let sim = good();
    let instance = sim.create(InstanceSpec { status: "pending_create".into(), ..spec() });
    let running = Boot::of(&instance).spawn();
    let refused = |sim: &Sim| calls_to(sim, Endpoint::Status).len();
    assert!(sim.wait_until(LONG, |calls| {
        calls.last().is_some_and(|call| call.at > Duration::from_secs(3))
    }));
    assert!(refused(&sim) > 2, "{}", sim.calls_table());
    instance.set_status("running");
    running.wait(LONG).expect_job(&sim);
}

fn spec() -> InstanceSpec {
    InstanceSpec::default()
}

#[test]
fn a_garm_that_never_knows_us_means_superseded() {
    let sim = good();
    let instance = sim.create(spec());
    sim.fault(Fault::new(Endpoint::AnyGarm).always().kind(FaultKind::unauthorized()));
    let began = Instant::now();
    let ended = Boot::of(&instance).run().expect(&sim, 11).expect_no_runner(&sim);
    let took = began.elapsed();
    assert!((3..15).contains(&took.as_secs()), "{took:?}\n{}", ended.story(&sim));
    assert!(calls_to(&sim, Endpoint::Download).is_empty(), "{}", ended.story(&sim));
    // It is asked beside the first word, once.
    assert_eq!(calls_to(&sim, Endpoint::RunnerMetadata).len(), 1, "{}", ended.story(&sim));
}

#[test]
fn what_garm_refuses_to_say_beside_the_first_word_is_asked_once_more_after_it() {
    let sim = good();
    let instance = sim.create(spec());
    let refuses = FaultKind::unauthorized();
    sim.fault(Fault::new(Endpoint::RunnerMetadata).once().kind(refuses));
    let ended = Boot::of(&instance).run().expect_job(&sim);
    assert_eq!(calls_to(&sim, Endpoint::RunnerMetadata).len(), 2, "{}", ended.story(&sim));
}

#[test]
fn a_requeued_instances_old_token_means_superseded() {
    let sim = good();
    let instance = sim.create(spec());
    let boot = Boot::of(&instance);
    let new = instance.requeue();
    let ended = boot.run().expect(&sim, 11).expect_no_runner(&sim);
    ended.expect_said(&sim, "GARM does not know it");
    Boot::of(&instance).env("BEARER_TOKEN", &new).run().expect_job(&sim);
}

#[test]
fn an_instance_that_is_still_being_created_boots() {
    let sim = good();
    let instance = sim.create(InstanceSpec { status: "creating".into(), ..spec() });
    Boot::of(&instance).run().expect_job(&sim);
}

#[test]
fn an_instance_that_garm_deletes_in_the_middle_of_the_download_starts_no_runner() {
    for spec in [spec(), InstanceSpec::with_token()] {
        let sim = good();
        let instance = sim.create(spec);
        let slow = FaultKind::SlowBody { bytes_per_sec: 400_000 };
        sim.fault(Fault::new(Endpoint::Download).always().kind(slow));
        let running = Boot::of(&instance).spawn();
        assert!(sim.wait_until(LONG, |calls| {
            let answered = |endpoint| {
                calls.iter().any(|call| call.endpoint == endpoint && call.status.is_some())
            };
            let papers =
                answered(Endpoint::CredentialsRsaparams) || answered(Endpoint::RegistrationToken);
            answered(Endpoint::Download) && papers
        }));
        instance.delete();
        let ended = running.wait(LONG).expect(&sim, 11).expect_no_runner(&sim);
        assert!(ended.configures().is_empty(), "{}", ended.story(&sim));
    }
}

#[test]
fn papers_that_garm_does_not_give_to_an_unknown_instance_mean_superseded() {
    for (endpoint, spec) in [
        (Endpoint::CredentialsRsaparams, spec()),
        (Endpoint::RegistrationToken, InstanceSpec::with_token()),
    ] {
        let sim = good();
        let instance = sim.create(spec);
        sim.fault(Fault::new(endpoint).always().kind(FaultKind::unauthorized()));
        Boot::of(&instance).run().expect(&sim, 11).expect_no_runner(&sim);
    }
}

#[test]
fn an_old_garm_and_the_bootstrap_file_are_enough() {
    for (_, spec) in both_kinds() {
        let sim = sim_of(SimOptions { no_runner_metadata: true, ..SimOptions::default() });
        let instance = sim.create(InstanceSpec { group: "a group".into(), ..spec.clone() });
        let ended = of_bootstrap_file(&instance).run().expect_job(&sim);
        assert_eq!(ended.configures().is_empty(), spec.jit, "{}", ended.story(&sim));
        if spec.jit {
            continue;
        }
        let events = sim.runner_events();
        let registered = events.iter().find(|event| event.event == "registered").unwrap();
        let labels = &registered.fields["labels"];
        assert!(labels.starts_with("sim,runner-controller-id="), "{labels}");
        assert_eq!(registered.fields["group"], "a group");
        assert_eq!(registered.runner, instance.name());
    }
}

#[test]
fn an_old_garm_and_explicit_settings_are_enough() {
    for (kind, spec) in both_kinds() {
        // JIT or not is found out by asking, said by the image, or said by a person.
        let ways: [fn(Boot, bool) -> Boot; 3] = [
            |boot, _| boot,
            |boot, jit| boot.env("JIT_CONFIG_ENABLED", if jit { "true" } else { "false" }),
            |boot, jit| boot.arg(if jit { "--jit" } else { "--jit=false" }),
        ];
        for (n, way) in ways.into_iter().enumerate() {
            let sim = sim_of(SimOptions { no_runner_metadata: true, ..SimOptions::default() });
            let instance = sim.create(spec.clone());
            let boot = Boot::of(&instance)
                .flag("runner-url", sim.download_url())
                .flag("runner-sha256", sim.archive_sha256().to_uppercase())
                .flag("url", format!("{}/acme/widgets", sim.forge_url()))
                .flag("labels", "a,b");
            println!("{kind}, way {n}");
            way(boot, spec.jit).run().expect_job(&sim);
        }
    }
}

#[test]
fn an_old_garm_alone_is_not_enough_and_what_is_missing_is_said() {
    let options = || SimOptions { no_runner_metadata: true, ..SimOptions::default() };
    let sim = sim_of(options());
    let instance = sim.create(spec());
    let ended = Boot::of(&instance).run();
    ended.expect_failed(&sim, 20, &["--runner-url"]).expect_no_runner(&sim);

    let sim = sim_of(options());
    let instance = sim.create(InstanceSpec::with_token());
    let ended = Boot::of(&instance).flag("runner-url", sim.download_url()).run();
    ended.expect_failed(&sim, 12, &["where to register", "--url"]).expect_no_runner(&sim);
}

#[test]
fn a_garm_that_drops_every_question_about_the_runner_is_done_without() {
    for (_, spec) in both_kinds() {
        let ca = garm_sim::PrivateCa::new("the forge's CA");
        let options = SimOptions { ca_bundle: Some(ca.pem()), ..SimOptions::default() };
        let sim = sim_of(options);
        let instance = sim.create(spec);
        let ended = of_bootstrap_file(&instance).run().expect_job(&sim);
        let asked = calls_to(&sim, Endpoint::RunnerMetadata);
        assert!((2..=6).contains(&asked.len()), "{}", ended.story(&sim));
        assert_eq!(calls_to(&sim, Endpoint::CertBundle).len(), 1, "{}", ended.story(&sim));
    }
}

#[test]
fn a_garm_that_fills_its_cache_is_waited_for() {
    let sim = good();
    let instance = sim.create(spec());
    sim.fault(Fault::new(Endpoint::RunnerMetadata).times(3));
    let ended = Boot::of(&instance).run().expect_job(&sim);
    assert_eq!(calls_to(&sim, Endpoint::RunnerMetadata).len(), 4, "{}", ended.story(&sim));
}

#[test]
fn a_refusal_of_garms_is_told_in_its_own_words() {
    let said = r#"{"error":"Bad Request","details":"template: x:3: unexpected \"}\" in <define>"}"#;
    for endpoint in [Endpoint::RunnerMetadata, Endpoint::RegistrationToken] {
        let sim = good();
        let instance = sim.create(InstanceSpec::with_token());
        sim.fault(Fault::new(endpoint).always().kind(FaultKind::answer(400, said)));
        let ended = Boot::of(&instance).run();
        let words =
            ["400 Bad Request", "template: x:3: unexpected \"}\" in <define>", "/metadata/run"];
        ended.expect_failed(&sim, 12, &words).expect_no_runner(&sim);
    }
}

#[test]
fn a_refusal_of_the_first_status_is_told_in_garms_own_words() {
    let sim = good();
    let instance = sim.create(spec());
    let said = r#"{"error":"Bad Request","details":"no such thing"}"#;
    let fault = Fault::new(Endpoint::Status).posting("installing");
    sim.fault(fault.kind(FaultKind::answer(400, said)));
    let ended = Boot::of(&instance).run().expect_failed(&sim, 12, &["no such thing"]);
    ended.expect_no_runner(&sim);
}

#[test]
fn an_answer_that_is_not_garms_is_refused() {
    for (kind, words) in [
        (FaultKind::CaptivePortal, "runner metadata"),
        (FaultKind::Body(b"{\"jit_enabled\": \"perhaps\"}".to_vec()), "runner metadata"),
    ] {
        let sim = good();
        let instance = sim.create(spec());
        sim.fault(Fault::new(Endpoint::RunnerMetadata).always().kind(kind));
        let ended = Boot::of(&instance).run().expect_failed(&sim, 12, &[words]);
        ended.expect_no_runner(&sim);
    }
}

#[test]
fn what_a_newer_garm_says_besides_is_no_trouble() {
    let sim = good();
    let instance = sim.create(InstanceSpec {
        extra_specs: Some(serde_json::json!({"anything": [1, {"deep": null}]})),
        ..spec()
    });
    let newer = serde_json::json!({
        "metadata_access": {"new": []}, "forge_type": "github", "jit_enabled": true,
        "runner_registration_url": sim.forge_url(), "runner_name": instance.name(),
        "brand_new": {"a": [1, 2]}, "agent_mode": false, "runner_labels": null, "ca_bundles": null,
        "runner_tools": {
            "os": "linux", "architecture": "x64", "download_url": sim.download_url(),
            "filename": "r.tar.gz", "sha256_checksum": sim.archive_sha256(), "size": 5
        }
    });
    let body = FaultKind::Body(newer.to_string().into_bytes());
    sim.fault(Fault::new(Endpoint::RunnerMetadata).always().kind(body));
    Boot::of(&instance).run().expect_job(&sim);
}

#[test]
fn a_garm_with_a_private_ca_is_believed_when_the_ca_is_given() {
    let options = || SimOptions { tls: true, ..SimOptions::default() };
    let sim = sim_of(options());
    let instance = sim.create(spec());
    let boot = Boot::of(&instance);
    // Line ends of another world, and a broken certificate beside the good one.
    let broken = "-----BEGIN CERTIFICATE-----\r\nAAAA\r\n-----END CERTIFICATE-----\r\n";
    let pem = format!("{broken}{}", sim.ca_pem().unwrap().replace('\n', "\r\n"));
    let ca = boot.file("ca.pem", pem);
    let ended = boot.flag("ca-file", &ca).run().expect_job(&sim);
    ended.expect_said(&sim, "certificate 1 of");

    let sim = sim_of(options());
    let instance = sim.create(InstanceSpec::with_token());
    of_bootstrap_file(&instance).run().expect_job(&sim);
}

#[test]
fn a_garm_with_an_unknown_ca_is_not_believed() {
    let sim = sim_of(SimOptions { tls: true, ..SimOptions::default() });
    let instance = sim.create(spec());
    let began = Instant::now();
    let ended = Boot::of(&instance).run().expect(&sim, 10).expect_no_runner(&sim);
    assert!(began.elapsed() < Duration::from_secs(20), "{}", ended.story(&sim));
    assert!(garm_calls(&sim).is_empty(), "{}", ended.story(&sim));
    ended.expect_said(&sim, "certificate");
}

#[test]
fn a_forge_with_a_ca_that_garm_knows_is_believed() {
    for (_, spec) in both_kinds() {
        let options = SimOptions { forge_tls: true, forge_ca_known: true, ..SimOptions::default() };
        let sim = sim_of(options);
        let instance = sim.create(spec);
        of_bootstrap_file(&instance).run().expect_job(&sim);
    }
}

#[test]
fn a_forge_with_a_ca_that_only_the_cert_bundle_tells_is_believed() {
    let options = SimOptions { forge_tls: true, forge_ca_known: true, ..SimOptions::default() };
    let sim = sim_of(options);
    let instance = sim.create(spec());
    let mut bootstrap: serde_json::Value =
        serde_json::from_str(&instance.bootstrap_json()).unwrap();
    bootstrap["ca-cert-bundle"] = "".into();
    let boot = Boot::bare();
    let file = boot.file("bootstrap.json", bootstrap.to_string());
    let ended = boot.flag("bootstrap-file", file).run().expect_job(&sim);
    ended.expect_said(&sim, "trusting 1 more certificate");
}

#[test]
fn a_redirect_of_garms_api_is_not_followed() {
    for endpoint in [Endpoint::Status, Endpoint::RunnerMetadata, Endpoint::CredentialsRunner] {
        let sim = good();
        let instance = sim.create(spec());
        let elsewhere = FaultKind::RedirectTo(format!("{}/elsewhere", sim.forge_url()));
        sim.fault(Fault::new(endpoint).always().kind(elsewhere));
        let ended = Boot::of(&instance).run().expect(&sim, 12).expect_no_runner(&sim);
        let strayed = sim.calls().into_iter().filter(|call| call.path == "/elsewhere").count();
        assert_eq!(strayed, 0, "{endpoint:?}\n{}", ended.story(&sim));
        let ended = ended.expect_said(&sim, "302");
        let told = failures(&sim).len();
        assert_eq!(told, 1, "{endpoint:?}\n{}", ended.story(&sim));
    }
}

#[test]
fn garms_token_goes_to_garm_alone() {
    for (_, spec) in both_kinds() {
        let sim = good();
        let instance = sim.create(spec);
        Boot::of(&instance).run().expect_job(&sim);
        for call in sim.calls() {
            let garms = matches!(call.authorization, Authorization::InstanceToken(_));
            assert_eq!(garms, call.host == Host::Garm, "{}", call.row());
        }
    }
}

#[test]
fn an_idle_whose_answer_is_lost_keeps_the_runner() {
    // Longer than the longest pause before the second attempt.
    let job = RunnerScript::one_job(Duration::from_millis(50), Duration::from_millis(1500));
    for (_, spec) in both_kinds() {
        let archive = ArchiveSpec::scripted(job.clone());
        let sim = Sim::start(SimOptions { archive, ..SimOptions::default() });
        let instance = sim.create(spec);
        let lost = Fault::new(Endpoint::Status).posting("idle").once();
        sim.fault(lost.kind(FaultKind::EmptyReplyAfterApplying));
        let ended = Boot::of(&instance).run().expect_job(&sim);
        let idles = statuses(&sim).iter().filter(|status| *status == "idle").count();
        assert_eq!(idles, 2, "{}", ended.story(&sim));
        assert!(failures(&sim).is_empty(), "{}", ended.story(&sim));
    }
}

#[test]
fn an_idle_that_a_job_has_overtaken_keeps_the_runner() {
    let sim = good();
    let instance = sim.create(spec());
    let running = {
        let late = Fault::new(Endpoint::Status).posting("idle").times(2);
        sim.fault(late.kind(FaultKind::status(503)));
        Boot::of(&instance).spawn()
    };
    wait_until("the job has started", || {
        sim.runner_events().iter().any(|event| event.event == "job_started")
    });
    let ended = running.wait(LONG).expect_job(&sim);
    assert!(failures(&sim).is_empty(), "{}", ended.story(&sim));
}

#[test]
fn an_agent_id_that_garm_does_not_take_is_left_out() {
    let sim = good();
    // GARM knows another id than the one that the forge will give.
    let instance = sim.create(InstanceSpec { agent_id: Some(77), ..InstanceSpec::with_token() });
    let ended = Boot::of(&instance).run().expect_job(&sim);
    let mut idles = calls_to(&sim, Endpoint::Status);
    idles.retain(|call| call.posted_status().as_deref() == Some("idle"));
    let answers: Vec<_> =
        idles.iter().map(|call| (call.status, call.json("agent_id").is_some())).collect();
    assert_eq!(answers, [(Some(400), true), (Some(200), false)], "{}", ended.story(&sim));
    ended.expect_said(&sim, "agent ID mismatch");
}

#[test]
fn one_fault_in_front_of_any_endpoint_does_not_keep_it_from_booting() {
    let kinds = || {
        [
            FaultKind::status(500),
            FaultKind::status(502),
            FaultKind::retry_after(429, 1),
            FaultKind::ResetBeforeReply,
            FaultKind::EmptyReply,
        ]
    };
    let common = [Endpoint::Status, Endpoint::RunnerMetadata, Endpoint::SystemInfo];
    let jit = [
        Endpoint::CredentialsRunner,
        Endpoint::CredentialsCredentials,
        Endpoint::CredentialsRsaparams,
        Endpoint::Download,
    ];
    // Every boot meets one fault in front of each of its endpoints.
    std::thread::scope(|scope| {
        for kind in kinds() {
            scope.spawn(move || {
                let sim = good();
                let instance = sim.create(spec());
                for endpoint in common.into_iter().chain(jit) {
                    sim.fault(Fault::new(endpoint).once().kind(kind.clone()));
                }
                let idle = Fault::new(Endpoint::Status).posting("idle").once();
                sim.fault(idle.kind(kind.clone()));
                let ended = Boot::of(&instance).run();
                println!("JIT, {kind:?}");
                ended.expect_job(&sim);
                assert!(failures(&sim).is_empty(), "{kind:?}\n{}", sim.calls_table());

                let sim = good();
                let instance = sim.create(InstanceSpec::with_token());
                for endpoint in common.into_iter().chain([Endpoint::RegistrationToken]) {
                    sim.fault(Fault::new(endpoint).once().kind(kind.clone()));
                }
                let ended = Boot::of(&instance).run();
                println!("token, {kind:?}");
                ended.expect_job(&sim);
            });
        }
    });
}

#[test]
fn a_registration_token_whose_answer_was_lost_is_named_as_handed_out() {
    let sim = good();
    let instance = sim.create(InstanceSpec::with_token());
    let lost = Fault::new(Endpoint::RegistrationToken).once();
    sim.fault(lost.kind(FaultKind::EmptyReplyAfterApplying));
    let ended = Boot::of(&instance).run();
    let words = ["registration token", "handed out already"];
    ended.expect_failed(&sim, 12, &words).expect_no_runner(&sim);
}

#[test]
fn a_web_page_in_answer_to_a_status_is_not_taken_for_garms_word() {
    let sim = good();
    let instance = sim.create(spec());
    sim.fault(Fault::new(Endpoint::Status).always().kind(FaultKind::CaptivePortal));
    let ended = Boot::of(&instance).run().expect(&sim, 10).expect_no_runner(&sim);
    ended.expect_said(&sim, "it is a web page");
}

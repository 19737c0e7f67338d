//! Each fault, seen by a raw socket.

use std::io::{ErrorKind, Read};
use std::time::{Duration, Instant};

use garm_sim::{Endpoint, Fault, FaultKind, Instance, InstanceSpec, Sim, SimOptions};

use crate::client::{Answer, Ask, get, post, read_answer};

struct Scene {
    sim: Sim,
    one: Instance,
}

fn scene(endpoint: Endpoint, kind: FaultKind) -> Scene {
    let sim = Sim::start(SimOptions::default());
    sim.fault(Fault::new(endpoint).once().kind(kind));
    let one = sim.create(InstanceSpec::default());
    Scene { sim, one }
}

impl Scene {
    fn name(&self) -> Ask {
        let url = format!("{}/system/service-name", self.sim.metadata_url());
        get(&url).bearer(&self.one.token())
    }

    fn installing(&self) -> Ask {
        let url = format!("{}/status", self.sim.callback_url());
        post(&url, r#"{"status":"installing"}"#).bearer(&self.one.token())
    }

    fn first_and_next(&self) -> (std::io::Result<Answer>, u16) {
        (self.name().send(), self.name().status())
    }
}

const NAME: &str = "actions.runner.acme.widgets";

#[test]
fn a_status_replaces_the_answer_with_its_headers() {
    let scene = scene(Endpoint::ServiceName, FaultKind::retry_after(429, 2));
    let (first, next) = scene.first_and_next();
    let first = first.unwrap();
    assert_eq!((first.status, first.header("retry-after")), (429, Some("2")));
    assert_eq!(next, 200);
}

#[test]
fn a_delay_keeps_the_right_answer() {
    let delay = Duration::from_millis(120);
    let scene = scene(Endpoint::ServiceName, FaultKind::Delay(delay));
    let start = Instant::now();
    assert_eq!(scene.name().send().unwrap().text(), NAME);
    assert!(start.elapsed() >= delay);
}

#[test]
fn a_hang_never_answers() {
    let scene = scene(Endpoint::ServiceName, FaultKind::HangForever);
    let mut stream = scene.name().open().unwrap();
    assert!(scene.sim.wait_until(Duration::from_secs(5), |calls| calls.len() == 1));
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let error = stream.read(&mut [0; 1]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
    assert_eq!(scene.name().status(), 200, "others are still served");
    assert_eq!(scene.sim.calls()[0].status, None);
}

#[test]
fn a_reset_comes_before_any_byte() {
    let scene = scene(Endpoint::ServiceName, FaultKind::ResetBeforeReply);
    let (first, next) = scene.first_and_next();
    assert_eq!(first.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(next, 200);
}

#[test]
fn a_reset_in_the_body_lets_exactly_so_many_bytes_through() {
    let scene = scene(Endpoint::ServiceName, FaultKind::ResetAfter(7));
    let answer = scene.name().send().unwrap();
    assert_eq!(answer.header("content-length"), Some("27"));
    assert_eq!(answer.text(), &NAME[..7]);
    let end = answer.end.unwrap().unwrap_err();
    assert_eq!(end.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_close_in_the_body_is_a_clean_end_too_early() {
    let scene = scene(Endpoint::ServiceName, FaultKind::CloseAfter(7));
    let answer = scene.name().send().unwrap();
    assert_eq!(answer.text(), &NAME[..7]);
    assert!(answer.end.unwrap().is_ok());
}

#[test]
fn an_empty_reply_is_a_clean_end_and_changes_nothing() {
    let scene = scene(Endpoint::Status, FaultKind::EmptyReply);
    let error = scene.installing().send().unwrap_err();
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::UnexpectedEof, String::new()));
    assert_eq!(scene.one.runner_status(), "pending");
}

#[test]
fn a_lost_reply_has_changed_the_state() {
    let scene = scene(Endpoint::Status, FaultKind::EmptyReplyAfterApplying);
    let error = scene.installing().send().unwrap_err();
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::UnexpectedEof, String::new()));
    assert_eq!(scene.one.runner_status(), "installing");
    assert_eq!(scene.sim.calls()[0].status, None);
}

#[test]
fn a_wrong_length_declares_more_than_comes() {
    let scene = scene(Endpoint::ServiceName, FaultKind::WrongLength(1000));
    let answer = scene.name().send().unwrap();
    assert_eq!(answer.header("content-length"), Some("1000"));
    assert_eq!(answer.text(), NAME);
    assert!(answer.end.unwrap().is_ok());
}

#[test]
fn garbage_is_no_http() {
    let scene = scene(Endpoint::ServiceName, FaultKind::Garbage(b"SSH-2.0-x\r\n".to_vec()));
    let error = scene.name().send().unwrap_err();
    assert_eq!(error.to_string(), "SSH-2.0-x\r\n");
}

#[test]
fn redirects_name_their_target() {
    for (kind, code) in [
        (FaultKind::RedirectTo("http://localhost:1/x".into()), 302),
        (FaultKind::RedirectWith(307, "http://localhost:1/x".into()), 307),
    ] {
        let answer = scene(Endpoint::ServiceName, kind).name().send().unwrap();
        let location = answer.header("location");
        assert_eq!((answer.status, location), (code, Some("http://localhost:1/x")));
    }
}

#[test]
fn a_slow_body_takes_its_time_and_is_whole() {
    let scene = scene(Endpoint::ServiceName, FaultKind::SlowBody { bytes_per_sec: 100 });
    let start = Instant::now();
    let answer = scene.name().send().unwrap();
    assert_eq!(answer.text(), NAME);
    assert!(start.elapsed() >= Duration::from_millis(150), "{:?}", start.elapsed());
}

#[test]
fn one_byte_of_a_download_can_be_flipped() {
    let scene = scene(Endpoint::Download, FaultKind::FlipByte(1000));
    let good = scene.sim.archive_bytes();
    let answer = get(&scene.sim.download_url()).send().unwrap();
    let differing: Vec<usize> = (0..good.len()).filter(|n| good[*n] != answer.body[*n]).collect();
    assert_eq!(differing, [1000]);
}

#[test]
fn a_captive_portal_is_friendly_html() {
    let answer = scene(Endpoint::Any, FaultKind::CaptivePortal).name().send().unwrap();
    assert_eq!(answer.status, 200);
    assert!(answer.header("content-type").unwrap().starts_with("text/html"));
}

#[test]
fn faults_can_come_one_after_the_other() {
    let sim = Sim::start(SimOptions::default());
    let on = |n: u64, kind| sim.fault(Fault::new(Endpoint::Status).nth(n..=n).kind(kind));
    on(1, FaultKind::ResetBeforeReply);
    on(2, FaultKind::EmptyReply);
    on(3, FaultKind::status(502));
    let one = sim.create(InstanceSpec::default());
    let scene = Scene { sim, one };
    let outcomes: Vec<_> = (0..4)
        .map(|_| scene.installing().send().map_err(|error| error.kind()).map(|a| a.status))
        .collect();
    let wanted = [Err(ErrorKind::ConnectionReset), Err(ErrorKind::UnexpectedEof), Ok(502), Ok(200)];
    assert_eq!(outcomes, wanted);
}

#[test]
fn a_kept_connection_is_served_normally_after_a_fault_that_spared_it() {
    let scene = scene(Endpoint::ServiceName, FaultKind::status(503));
    let mut stream = scene.name().open().unwrap();
    assert_eq!(read_answer(&mut stream, false).unwrap().status, 503);
    let path = "/api/v1/metadata/system/service-name";
    let token = scene.one.token();
    let text = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n");
    std::io::Write::write_all(&mut stream, text.as_bytes()).unwrap();
    assert_eq!(read_answer(&mut stream, false).unwrap().text(), NAME);
    let calls = scene.sim.calls();
    assert_eq!(calls[0].connection, calls[1].connection);
}

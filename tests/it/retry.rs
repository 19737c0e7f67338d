//! Which failures are worth another attempt: every status and every fault of the wire, through the real
//! client, and the pauses between attempts.

use std::net::TcpListener;
use std::time::{Duration, Instant, SystemTime};

use garm_bootstrap::http::retry::{self, Verdict, verdict};
use garm_bootstrap::http::{
    Http, HttpError, Patience, Policy, ProxySettings, Reply, Store, Timeouts, Trust,
};
use garm_bootstrap::tools::download::{self, Candidate, Pace};
use garm_sim::{
    ArchiveSpec, Endpoint, Fault, FaultKind, InstanceSpec, ServerCertificate, Sim, SimOptions,
};
use reqwest::Method;
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::support::LONG;

const PATH: &str = "/api/v1/metadata/system/service-name";

/// A client of one simulated GARM.
struct Client {
    http: Http,
    url: Url,
    token: String,
}

impl Client {
    fn of(sim: &Sim, trust: &Trust) -> Self {
        let timeouts = Timeouts { attempt: Duration::from_millis(400), ..Timeouts::default() };
        let api = vec![Url::parse(&sim.base_url()).unwrap()];
        let http = Http::with_timeouts(trust, &ProxySettings::default(), api, timeouts).unwrap();
        let url = Url::parse(&(sim.base_url() + PATH)).unwrap();
        Self { http, url, token: sim.create(InstanceSpec::default()).token() }
    }

    async fn ask(&self) -> Result<Reply, HttpError> {
        let request = self.http.request(Method::GET, self.url.clone()).bearer_auth(&self.token);
        self.http.fetch(request).await
    }
}

fn patience(limit: Duration) -> Patience {
    Patience { deadline: Instant::now() + limit, cancel: CancellationToken::new() }
}

fn quick() -> Policy {
    Policy { first_pause: Duration::from_millis(1), ..Policy::default() }
}

#[tokio::test]
async fn every_status_has_its_verdict() {
    let sim = Sim::start(SimOptions::default());
    let client = Client::of(&sim, &Trust::default());
    for code in 100..=599_u16 {
        sim.clear_faults();
        let raw = format!("HTTP/1.1 {code} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            .into_bytes();
        sim.fault(Fault::new(Endpoint::ServiceName).kind(FaultKind::Garbage(raw)));
        let answer = client.ask().await;
        let found = answer.as_ref().map(|_| ()).map_err(verdict);
        let expected = match code {
            // Nobody asked for another protocol.
            101 => Err(Verdict::Final),
            // The final answer never came.
            100..=199 | 408 | 425 | 429 | 500.. => Err(Verdict::Retry { after: None }),
            200..=299 => Ok(()),
            300..=499 => Err(Verdict::Final),
            _ => unreachable!(),
        };
        assert_eq!(found, expected, "{code}: {answer:?}");
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Answer,
    Retry,
    Final,
}

/// A `match` and not a table, so that a new kind of fault asks for its line here.
fn expected(kind: &FaultKind) -> Expected {
    match kind {
        FaultKind::Status { code: 500.., .. }
        | FaultKind::HangForever
        | FaultKind::ResetBeforeReply
        | FaultKind::ResetAfter(_)
        | FaultKind::CloseAfter(_)
        | FaultKind::EmptyReply
        | FaultKind::EmptyReplyAfterApplying
        | FaultKind::WrongLength(_)
        | FaultKind::Garbage(_)
        | FaultKind::SlowBody { .. } => Expected::Retry,
        FaultKind::Delay(time) if time.as_millis() > 400 => Expected::Retry,
        // Not followed for an API: a POST would become a GET.
        FaultKind::Status { .. } | FaultKind::RedirectTo(_) | FaultKind::RedirectWith(..) => {
            Expected::Final
        }
        // Whole answers; what is in them is their reader's to judge.
        FaultKind::Delay(_)
        | FaultKind::FlipByte(_)
        | FaultKind::Body(_)
        | FaultKind::CaptivePortal => Expected::Answer,
    }
}

#[tokio::test]
async fn every_fault_of_the_wire_has_its_verdict() {
    let sim = Sim::start(SimOptions::default());
    let client = Client::of(&sim, &Trust::default());
    let elsewhere = || sim.forge_url() + "/x";
    let kinds = [
        FaultKind::status(500),
        FaultKind::unauthorized(),
        FaultKind::Delay(Duration::from_millis(20)),
        FaultKind::Delay(Duration::from_millis(900)),
        FaultKind::HangForever,
        FaultKind::ResetBeforeReply,
        FaultKind::ResetAfter(0),
        FaultKind::ResetAfter(5),
        FaultKind::CloseAfter(0),
        FaultKind::CloseAfter(5),
        FaultKind::EmptyReply,
        FaultKind::EmptyReplyAfterApplying,
        FaultKind::WrongLength(1000),
        FaultKind::Garbage(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()),
        FaultKind::Garbage(vec![0x15, 3, 1, 0, 2, 2, 22]),
        FaultKind::RedirectTo(elsewhere()),
        FaultKind::RedirectWith(301, elsewhere()),
        FaultKind::RedirectWith(307, elsewhere()),
        FaultKind::SlowBody { bytes_per_sec: 1 },
        FaultKind::FlipByte(1),
        FaultKind::Body(b"other".to_vec()),
        FaultKind::CaptivePortal,
    ];
    for kind in kinds {
        sim.clear_faults();
        sim.fault(Fault::new(Endpoint::ServiceName).kind(kind.clone()));
        let answer = client.ask().await;
        let found = match answer.as_ref().map_err(verdict) {
            Ok(_) => Expected::Answer,
            Err(Verdict::Retry { .. }) => Expected::Retry,
            Err(Verdict::Final) => Expected::Final,
        };
        assert_eq!(found, expected(&kind), "{kind:?}: {answer:?}");
    }
}

#[tokio::test]
async fn a_redirect_of_the_api_says_where_it_leads() {
    let sim = Sim::start(SimOptions::default());
    let client = Client::of(&sim, &Trust::default());
    let target = "https://garm.example/api?token=not-to-be-shown".to_owned();
    sim.fault(Fault::new(Endpoint::ServiceName).kind(FaultKind::RedirectWith(301, target)));
    let error = client.ask().await.unwrap_err().to_string();
    assert!(
        error.ends_with("301 Moved Permanently (it leads to https://garm.example/api)"),
        "{error}"
    );
}

#[tokio::test]
async fn a_certificate_that_is_not_believed_is_final_and_named() {
    let table = [
        (ServerCertificate::Good, false, "signed by an authority that is not known here"),
        (ServerCertificate::WrongName, true, "not made out to 127.0.0.1, but to"),
        (ServerCertificate::Expired, true, "certificate expired at 2021-01-01T00:00:00Z"),
    ];
    for (certificate, trusted, said) in table {
        let sim = Sim::start(SimOptions { tls: true, certificate, ..SimOptions::default() });
        let mut trust = Trust::default();
        if trusted {
            assert_eq!(trust.add_pem(sim.ca_pem().unwrap().as_bytes(), "the test"), 1);
        }
        let error = Client::of(&sim, &trust).ask().await.unwrap_err();
        assert_eq!(verdict(&error), Verdict::Final, "{error}");
        assert!(error.is_certificate() && error.to_string().contains(said), "{error}");
    }
}

/// A machine's clock may be behind until its first seconds have passed.
#[tokio::test]
async fn a_certificate_that_is_not_valid_yet_is_named_and_waited_for() {
    let certificate = ServerCertificate::NotYetValid;
    let sim = Sim::start(SimOptions { tls: true, certificate, ..SimOptions::default() });
    let mut trust = Trust::default();
    trust.add_pem(sim.ca_pem().unwrap().as_bytes(), "the test");
    let error = Client::of(&sim, &trust).ask().await.unwrap_err();
    assert_eq!(verdict(&error), Verdict::Retry { after: None }, "{error}");
    let said = "is not valid before 2090-01-01T00:00:00Z";
    assert!(error.is_certificate() && error.to_string().contains(said), "{error}");
}

#[tokio::test]
async fn tls_to_a_plain_port_and_http_to_a_tls_port_are_named() {
    let plain = Sim::start(SimOptions::default());
    let mut client = Client::of(&plain, &Trust::default());
    client.url.set_scheme("https").unwrap();
    let error = client.ask().await.unwrap_err();
    assert_eq!(verdict(&error), Verdict::Final, "{error}");
    assert!(error.to_string().contains("does not speak TLS there"), "{error}");

    // A TLS server that is not Go's answers with an alert (Go's: with a 400 that says it in words).
    let alert = FaultKind::Garbage(vec![0x15, 3, 1, 0, 2, 2, 22]);
    plain.fault(Fault::new(Endpoint::ServiceName).kind(alert));
    client.url.set_scheme("http").unwrap();
    let error = client.ask().await.unwrap_err().to_string();
    assert!(error.contains("is not HTTP") && error.contains("must begin with https://"), "{error}");
}

#[tokio::test]
async fn a_name_and_a_host_that_are_not_there_yet_are_waited_for_and_named() {
    let sim = Sim::start(SimOptions::default());
    let mut client = Client::of(&sim, &Trust::default());
    sim.garm_down();
    let error = client.ask().await.unwrap_err();
    let port = client.url.port().unwrap();
    assert_eq!(verdict(&error), Verdict::Retry { after: None });
    let awaited = format!("GARM at 127.0.0.1:{port} to accept connections");
    assert_eq!(error.awaits("GARM").as_deref(), Some(&*awaited), "{error}");

    client.url.set_host(Some("no-such-host.invalid")).unwrap();
    let error = client.ask().await.unwrap_err();
    if matches!(error, HttpError::TimedOut { .. }) {
        return; // A resolver that takes longer than an attempt is retried like any other silence.
    }
    assert_eq!(verdict(&error), Verdict::Retry { after: None });
    let awaited = "the name no-such-host.invalid to resolve";
    assert_eq!(error.awaits("GARM").as_deref(), Some(awaited), "{error}");
}

/// How long it takes from an answer with those headers to the next attempt.
async fn waits(
    headers: &[(&str, String)],
    limit: Duration,
) -> (Duration, Result<Reply, HttpError>) {
    let sim = Sim::start(SimOptions::default());
    let client = Client::of(&sim, &Trust::default());
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let kind = FaultKind::Status { code: 503, body: String::new(), headers };
    sim.fault(Fault::new(Endpoint::ServiceName).once().kind(kind));
    let began = Instant::now();
    let reply = retry::run("it", &quick(), &patience(limit), || client.ask()).await;
    (began.elapsed(), reply)
}

#[tokio::test]
async fn retry_after_is_honoured_in_seconds_and_as_a_date_by_the_servers_clock() {
    let limit = Duration::from_secs(20);
    let (took, reply) = waits(&[("retry-after", "1".to_owned())], limit).await;
    assert!(reply.is_ok() && took >= Duration::from_secs(1), "{took:?}");

    let server = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let date = |time| httpdate::fmt_http_date(time);
    let headers = [("date", date(server)), ("retry-after", date(server + Duration::from_secs(1)))];
    let (took, reply) = waits(&headers, limit).await;
    assert!(reply.is_ok() && took >= Duration::from_secs(1), "{took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[tokio::test]
async fn retry_after_beyond_the_deadline_is_not_waited_for() {
    let headers = [("retry-after", "3600".to_owned())];
    let (took, reply) = waits(&headers, Duration::from_secs(3)).await;
    assert_eq!(reply.unwrap_err().status(), Some(503));
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test]
async fn a_stop_ends_a_pause_in_its_middle() {
    let patience = patience(Duration::from_secs(600));
    let cancel = patience.cancel.clone();
    let began = Instant::now();
    let (slept, ()) = tokio::join!(patience.pause(Duration::from_secs(300)), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        cancel.cancel();
    });
    assert!(!slept && began.elapsed() < Duration::from_secs(5));
}

/// Downloads from `sim` into a folder of its own, at a pace that a test can wait for.
async fn fetch(
    sim: &Sim,
    urls: &[String],
    limit: Duration,
) -> Result<u64, download::DownloadError> {
    let dir = tempfile::tempdir().unwrap();
    let trust = Trust::of_system(&Store::default());
    let http = Http::new(&trust, &ProxySettings::default(), vec![]).unwrap();
    let sha256 = Some(sim.archive_sha256().parse().unwrap());
    let candidates: Vec<Candidate> = urls
        .iter()
        .map(|url| Candidate { url: Url::parse(url).unwrap(), sha256, token: None })
        .collect();
    let pace = Pace { bytes_per_second: 10_000, over: Duration::from_millis(500) };
    let (home, patience) = (dir.path().join("home"), patience(limit));
    let fetched = download::download(&http, &candidates, &home, None, pace, &patience).await;
    fetched.map(|unpacked| unpacked.files)
}

fn downloads(sim: &Sim) -> Vec<Option<String>> {
    let calls = sim.calls().into_iter().filter(|call| call.endpoint == Endpoint::Download);
    calls.map(|call| call.header("range").map(str::to_owned)).collect()
}

#[tokio::test]
async fn a_download_that_only_drips_is_taken_up_where_it_was() {
    let sim = Sim::start(SimOptions { archive: ArchiveSpec::default(), ..SimOptions::default() });
    let slow = FaultKind::SlowBody { bytes_per_sec: 100 };
    sim.fault(Fault::new(Endpoint::Download).once().kind(slow));
    let began = Instant::now();
    let files = fetch(&sim, &[sim.download_url()], LONG).await.unwrap();
    assert!(files > 5 && began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let ranges = downloads(&sim);
    assert_eq!(ranges.len(), 2, "{ranges:?}");
    assert!(ranges[1].as_deref().is_some_and(|range| range.starts_with("bytes=")), "{ranges:?}");
}

#[tokio::test]
async fn a_drip_without_ranges_starts_from_the_beginning() {
    let sim = Sim::start(SimOptions { ranges: false, ..SimOptions::default() });
    let slow = FaultKind::SlowBody { bytes_per_sec: 100 };
    sim.fault(Fault::new(Endpoint::Download).once().kind(slow));
    fetch(&sim, &[sim.download_url()], LONG).await.unwrap();
    assert!(downloads(&sim).len() >= 2, "{:?}", downloads(&sim));
}

#[tokio::test]
async fn the_next_mirror_is_asked_when_one_is_away_or_has_something_else() {
    let sim = Sim::start(SimOptions::default());
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let away = format!("http://{unused}/actions-runner.tar.gz");
    let other = sim.base_url() + "/nothing.tar.gz";
    fetch(&sim, &[away.clone(), other, sim.download_url()], LONG).await.unwrap();
    let error = fetch(&sim, &[away], Duration::from_secs(2)).await.unwrap_err();
    assert!(error.to_string().contains("does not accept connections"), "{error}");
}

//! A network that is not there yet, is there in part, or is behind a proxy.

mod proxy;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use garm_sim::{
    ArchiveSpec, Authorization, Endpoint, Fault, FaultKind, Host, Instance, InstanceSpec, Sim,
    SimOptions,
};

use crate::support::{Boot, LONG, one_job, wait_until};
use proxy::Proxy;

fn sim() -> Sim {
    Sim::start(SimOptions { archive: ArchiveSpec::scripted(one_job()), ..SimOptions::default() })
}

fn port(sim: &Sim) -> u16 {
    sim.base_url().rsplit(':').next().unwrap().parse().unwrap()
}

/// The boot of `instance`, told that GARM is at `host`.
fn at(instance: &Instance, host: &str) -> Boot {
    let env = instance.env();
    env.iter().fold(Boot::of(instance), |boot, (name, value)| {
        boot.env(name, &value.replace("127.0.0.1", host))
    })
}

/// As root, with `hosts` for /etc/hosts and no name server; gives the file that stands for it.
fn with_hosts(boot: Boot, hosts: &str) -> (Boot, std::path::PathBuf) {
    let (file, resolv) = (boot.path("hosts"), boot.path("resolv.conf"));
    fs::write(&file, hosts).unwrap();
    fs::write(&resolv, "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n").unwrap();
    let script = format!(
        "mount --bind {} /etc/hosts; mount --bind {} /etc/resolv.conf; exec \"$@\"",
        file.display(),
        resolv.display()
    );
    (boot.in_namespace(&script), file)
}

#[test]
fn a_garm_that_is_down_is_waited_for_and_named() {
    let sim = sim();
    let instance = sim.create(InstanceSpec::default());
    sim.garm_down();
    let boot = Boot::of(&instance).spawn();
    let said = format!("waiting for GARM at 127.0.0.1:{} to accept connections", port(&sim));
    wait_until("it says what it waits for", || boot.stderr().contains(&said));
    sim.garm_up().unwrap();
    let ended = boot.wait(LONG);
    assert_eq!(ended.code, 0, "{}", ended.output());
}

#[test]
fn a_name_that_resolves_later_is_waited_for_and_named() {
    let sim = sim();
    let instance = sim.create(InstanceSpec::default());
    let (boot, hosts) = with_hosts(at(&instance, "garm.example"), "127.0.0.1 localhost\n");
    let boot = boot.spawn();
    let said = "waiting for the name garm.example to resolve";
    wait_until("it says what it waits for", || boot.stderr().contains(said));
    // In its place, for the mount is of this very file.
    let mut file = fs::OpenOptions::new().append(true).open(hosts).unwrap();
    file.write_all(b"127.0.0.1 garm.example\n").unwrap();
    let ended = boot.wait(LONG);
    assert_eq!(ended.code, 0, "{}", ended.output());
}

#[test]
fn a_name_that_never_resolves_ends_at_the_deadline_and_is_named() {
    let sim = sim();
    let instance = sim.create(InstanceSpec::default());
    let (boot, _) = with_hosts(at(&instance, "garm.example"), "127.0.0.1 localhost\n");
    let ended = boot.env("GARM_DEADLINE", "3s").run();
    assert_eq!(ended.code, 10, "{}", ended.output());
    assert!(ended.stderr.contains("the name garm.example does not resolve"), "{}", ended.stderr);
}

#[test]
fn each_retry_is_logged_with_its_cause_and_pause() {
    let sim = sim();
    sim.fault(Fault::new(Endpoint::Status).times(2).kind(FaultKind::status(503)));
    let ended = Boot::of(&sim.create(InstanceSpec::default())).run();
    assert_eq!(ended.code, 0, "{}", ended.output());
    let retries: Vec<&str> =
        ended.stderr.lines().filter(|line| line.contains("503 Service Unavailable")).collect();
    assert_eq!(retries.len(), 2, "{}", ended.stderr);
    assert!(retries.iter().all(|line| line.contains("pause_s") && line.contains("attempt")));
}

#[test]
fn an_ipv6_address_that_does_not_answer_does_not_keep_the_other_one_from_it() {
    let sim = sim();
    let instance = sim.create(InstanceSpec::default());
    // A full backlog: the kernel lets every further handshake wait.
    let deaf = deaf_listener(port(&sim));
    let hosts = "::1 garm.example\n127.0.0.1 garm.example\n";
    let (boot, _) = with_hosts(at(&instance, "garm.example"), hosts);
    let began = Instant::now();
    let ended = boot.run();
    assert_eq!(ended.code, 0, "{}", ended.output());
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    drop(deaf);
}

/// Sockets that keep `[::1]:port` busy: nobody accepts there, and there is no room to wait.
fn deaf_listener(port: u16) -> impl Drop {
    use nix::sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, SockaddrIn6, bind, listen, socket,
    };
    struct Deaf(std::os::fd::OwnedFd, Vec<TcpStream>);
    impl Drop for Deaf {
        fn drop(&mut self) {
            self.1.clear();
            let _ = &self.0;
        }
    }
    let address = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    let flags = SockFlag::SOCK_CLOEXEC;
    let listener = socket(AddressFamily::Inet6, SockType::Stream, flags, None).unwrap();
    let SocketAddr::V6(v6) = address else { unreachable!() };
    bind(std::os::fd::AsRawFd::as_raw_fd(&listener), &SockaddrIn6::from(v6)).unwrap();
    listen(&listener, Backlog::new(0).unwrap()).unwrap();
    let limit = Duration::from_millis(300);
    let connect = || TcpStream::connect_timeout(&address, limit);
    let held = (0..4).filter_map(|_| connect().ok()).collect();
    assert!(connect().is_err(), "this kernel answers although the backlog is full");
    Deaf(listener, held)
}

#[test]
fn a_garm_with_ipv6_alone_is_reached_by_name_and_by_address() {
    let sim = sim();
    relay(TcpListener::bind((Ipv6Addr::LOCALHOST, port(&sim))).unwrap(), port(&sim));
    let instance = sim.create(InstanceSpec::default());
    let (boot, _) = with_hosts(at(&instance, "garm.example"), "::1 garm.example\n");
    let ended = boot.run();
    assert_eq!(ended.code, 0, "{}", ended.output());
    let ended = at(&sim.create(InstanceSpec::default()), "[::1]").run();
    assert_eq!(ended.code, 0, "{}", ended.output());
}

/// Passes every connection on to the loopback `port` of IPv4, for as long as the test runs.
fn relay(listener: TcpListener, port: u16) {
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
            proxy::join(client, server);
        }
    });
}

#[test]
fn every_step_goes_through_a_proxy_that_asks_for_credentials() {
    for names in [["http_proxy", "no_proxy"], ["HTTP_PROXY", "NO_PROXY"]] {
        let sim = sim();
        let proxy = Proxy::start("us@er", "correct@horse");
        let spec = InstanceSpec {
            download_url: Some(sim.download_url().replace("127.0.0.1", "forge.example")),
            ..InstanceSpec::default()
        };
        let instance = sim.create(spec);
        let url = format!("http://us%40er:correct%40horse@{}", proxy.address());
        // Nothing but the proxy knows the two names.
        let ended = at(&instance, "garm.example")
            .env(names[0], &url)
            .env(names[1], " .internal , 10.0.0.0/8")
            .run();
        assert_eq!(ended.code, 0, "{}", ended.output());
        assert!(proxy.served("garm.example") >= 5 && proxy.served("forge.example") == 1);
        let environment = fs::read(ended.home().join("_sim/env-1")).unwrap();
        let environment = String::from_utf8(environment).unwrap();
        for name in ["http_proxy", "HTTP_PROXY"] {
            assert!(environment.contains(&format!("{name}={url}\0")), "{environment}");
        }
        let messages = instance.messages().into_iter().map(|m| m.message).collect::<String>();
        for text in [ended.output(), messages] {
            assert!(!text.contains("correct"), "{text}");
        }
    }
}

#[test]
fn a_proxy_that_refuses_our_credentials_is_named() {
    let sim = sim();
    let proxy = Proxy::start("user", "right-password");
    let url = format!("http://user:wrong-password@{}", proxy.address());
    let instance = sim.create(InstanceSpec::default());
    let plain = at(&instance, "garm.example").env("http_proxy", &url).run();
    assert_eq!(plain.code, 12, "{}", plain.output());
    assert!(plain.stderr.contains("407 Proxy Authentication Required"), "{}", plain.stderr);

    let boot = at(&instance, "garm.example").env("https_proxy", &url);
    let secure = instance.env().into_iter().fold(boot, |boot, (name, value)| {
        boot.env(&name, &value.replace("http://127.0.0.1", "https://garm.example"))
    });
    let secure = secure.run();
    let said = format!("the proxy at {} asks for credentials that it accepts", proxy.address());
    assert!(secure.stderr.contains(&said), "{}", secure.stderr);
    for ended in [plain, secure] {
        assert!(!ended.output().contains("wrong-password"));
    }
}

#[test]
fn tls_goes_through_the_proxy_and_a_proxy_over_tls_is_warned_of() {
    let sim = Sim::start(SimOptions {
        tls: true,
        archive: ArchiveSpec::scripted(one_job()),
        ..SimOptions::default()
    });
    let proxy = Proxy::start("user", "right-password");
    let instance = sim.create(InstanceSpec::default());
    let boot = at(&instance, "garm.example");
    let ca = boot.path("ca.pem");
    fs::write(&ca, sim.ca_pem().unwrap()).unwrap();
    let ended = boot
        .env("GARM_CA_FILE", ca.to_str().unwrap())
        .env("https_proxy", &format!("http://user:right-password@{}", proxy.address()))
        .env("http_proxy", "https://127.0.0.1:9")
        .env("no_proxy", "127.0.0.1")
        .run();
    assert_eq!(ended.code, 0, "{}", ended.output());
    assert!(proxy.served("garm.example") >= 1);
    assert!(ended.stderr.contains("http_proxy names an https:// proxy"), "{}", ended.stderr);
}

#[test]
fn a_proxy_that_is_away_is_named_as_the_proxy() {
    let sim = sim();
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ended = at(&sim.create(InstanceSpec::default()), "garm.example")
        .env("http_proxy", &unused.to_string())
        .env("GARM_DEADLINE", "2s")
        .run();
    assert_eq!(ended.code, 10, "{}", ended.output());
    let said = format!("waiting for the proxy at {unused} to accept connections");
    assert!(ended.stderr.contains(&said), "{}", ended.stderr);
}

#[test]
fn a_redirect_to_another_host_carries_none_of_our_tokens() {
    let sim = sim();
    let spec = InstanceSpec {
        temp_download_token: Some("temp-download-secret".to_owned()),
        ..InstanceSpec::default()
    };
    let instance = sim.create(spec);
    let elsewhere = FaultKind::RedirectTo(sim.mirror_url());
    sim.fault(Fault::new(Endpoint::Download).once().kind(elsewhere));
    let ended = Boot::of(&instance).run();
    println!("{}\n{}", sim.calls_table(), ended.output());
    let calls = sim.calls();
    let downloads: Vec<_> = calls.iter().filter(|c| c.endpoint == Endpoint::Download).collect();
    assert_eq!(downloads[0].authorization, Authorization::DownloadToken);
    assert_eq!(downloads[1].authorization, Authorization::None);
    assert_eq!(downloads[1].header("referer"), None);
    let to_forge = calls.iter().filter(|call| call.host == Host::Forge);
    let with_garms_token =
        to_forge.filter(|c| matches!(c.authorization, Authorization::InstanceToken(_)));
    assert_eq!(with_garms_token.count(), 0);
}

#[test]
fn a_page_in_place_of_the_runner_is_named() {
    let sim = sim();
    let table = [
        (FaultKind::CaptivePortal, "an HTML page: \"Log in to the network\""),
        (FaultKind::Body(b"Not Found".to_vec()), "text: \"Not Found\""),
        (FaultKind::answer(404, "Not Found"), "404 Not Found (Not Found)"),
    ];
    for (kind, said) in table {
        sim.clear_faults();
        sim.fault(Fault::new(Endpoint::Download).kind(kind));
        let instance = sim.create(InstanceSpec::default());
        let ended = Boot::of(&instance).run();
        assert_eq!(ended.code, 20, "{}", ended.output());
        let messages = instance.messages();
        assert!(messages.iter().any(|m| m.message.contains(said)), "{messages:?}");
    }
}

/// What is read up to the end of a message's head.
fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
        head.push(byte[0]);
    }
    String::from_utf8_lossy(&head).into_owned()
}

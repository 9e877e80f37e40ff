//! Probes of real servers: nginx, dnsmasq, and the kernel itself.

use super::*;
use crate::config::{DnsProbe, HttpProbe, Probe, ProbeKind, TlsProbe};
use lb_common::control::probe::ProbeRecord;

fn probe(kind: ProbeKind) -> Probe {
    Probe {
        kind,
        port: None,
        interval: Duration::from_millis(50),
        fast_interval: Duration::from_millis(20),
        timeout: Duration::from_millis(500),
        rise: 2,
        fall: 2,
        jitter: 10,
        source: None,
    }
}

fn http(path: &str) -> HttpProbe {
    HttpProbe {
        path: path.to_owned(),
        host: None,
        expect_status: vec![200],
        expect_body: None,
        tls: None,
    }
}

/// The first result of a probe.
async fn first(probe: Probe, port: u16) -> Result<(), String> {
    let mut outside = Listener::start(vec![Watched {
        probe: Some(probe),
        ..watched(port)
    }]);
    match word(&mut outside).await {
        OutsideWord::Probe(ProbeRecord { up: Some(true), .. }) => Ok(()),
        OutsideWord::Probe(record) => Err(record.detail),
        other => panic!("{other:?}"),
    }
}

fn check(name: &str, result: Result<(), String>, problem: Option<&str>) {
    match (result, problem) {
        (Ok(()), None) => {}
        (Err(detail), Some(problem)) => assert!(detail.contains(problem), "{name}: {detail}"),
        (result, problem) => panic!("{name}: {result:?}, expected {problem:?}"),
    }
}

/// nginx with a plain and an encrypted port, and the certificate of its own
/// authority for `www.example`.
struct Nginx {
    _program: Program,
    scratch: Scratch,
    port: u16,
    tls_port: u16,
}

impl Nginx {
    async fn start(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let directory = scratch.0.display().to_string();
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt"])
            .args(["ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
            .args(["-subj", "/CN=www.example"])
            .args(["-addext", "subjectAltName=DNS:www.example"])
            .args(["-addext", "basicConstraints=critical,CA:FALSE"])
            .args(["-keyout", &format!("{directory}/key.pem")])
            .args(["-out", &format!("{directory}/cert.pem")])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let (port, tls_port) = (free_port(), free_port());
        let config = format!(
            "daemon off; master_process off; pid {directory}/pid; error_log {directory}/error;\n\
             events {{ }}\nhttp {{ access_log off;\n\
             client_body_temp_path {directory}/a; proxy_temp_path {directory}/b;\n\
             fastcgi_temp_path {directory}/c; uwsgi_temp_path {directory}/d;\n\
             scgi_temp_path {directory}/e;\n\
             server {{ listen 127.0.0.1:{port}; listen 127.0.0.1:{tls_port} ssl;\n\
             ssl_certificate {directory}/cert.pem; ssl_certificate_key {directory}/key.pem;\n\
             location /ok {{ return 200 'all is well'; }}\n\
             location /host {{ return 200 $host; }}\n\
             location /sni {{ return 200 $ssl_server_name; }}\n\
             location /bad {{ return 503; }} }} }}\n"
        );
        let config = scratch.file("nginx.conf", &config).display().to_string();
        let prefix = format!("{directory}/");
        let program = Program::start("nginx", &["-c", &config, "-p", &prefix]);
        listening(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await;
        Self {
            _program: program,
            scratch,
            port,
            tls_port,
        }
    }
}

#[tokio::test]
async fn requests_to_nginx() {
    let nginx = Nginx::start("http").await;
    let rows: [(&str, HttpProbe, Option<&str>); 7] = [
        ("right", http("/ok"), None),
        ("status", http("/bad"), Some("status 503")),
        ("missing", http("/none"), Some("status 404")),
        (
            "expected status",
            HttpProbe {
                expect_status: vec![200, 503],
                ..http("/bad")
            },
            None,
        ),
        (
            "body",
            HttpProbe {
                expect_body: Some("well".into()),
                ..http("/ok")
            },
            None,
        ),
        (
            "other body",
            HttpProbe {
                expect_body: Some("ill".into()),
                ..http("/ok")
            },
            Some("lacks the expected text"),
        ),
        (
            "host",
            HttpProbe {
                host: Some("www.example".into()),
                expect_body: Some("www.example".into()),
                ..http("/host")
            },
            None,
        ),
    ];
    for (name, http, problem) in rows {
        let result = first(probe(ProbeKind::Http(http)), nginx.port).await;
        check(name, result, problem);
    }
}

#[tokio::test]
async fn certificates_of_nginx() {
    let nginx = Nginx::start("https").await;
    let authority = Some(nginx.scratch.0.join("cert.pem"));
    let tls = |name: Option<&str>, verify, ca_file: &Option<PathBuf>| TlsProbe {
        server_name: name.map(str::to_owned),
        verify,
        ca_file: ca_file.clone(),
    };
    let missing = Some(nginx.scratch.0.join("missing.pem"));
    let name = Some("www.example");
    for (row, tls, port, problem) in [
        ("right", tls(name, true, &authority), nginx.tls_port, None),
        (
            "another name",
            tls(Some("mail.example"), true, &authority),
            nginx.tls_port,
            Some("TLS: invalid peer certificate"),
        ),
        (
            "the address is not in the certificate",
            tls(None, true, &authority),
            nginx.tls_port,
            Some("TLS: invalid peer certificate"),
        ),
        (
            "an authority that the system does not know",
            tls(name, true, &None),
            nginx.tls_port,
            Some("certificate"),
        ),
        (
            "not verified",
            tls(name, false, &None),
            nginx.tls_port,
            None,
        ),
        (
            "no authority",
            tls(name, true, &missing),
            nginx.tls_port,
            Some("cannot read"),
        ),
        (
            "not TLS",
            tls(name, false, &None),
            nginx.port,
            Some("TLS: "),
        ),
    ] {
        let expect_body = problem.is_none().then(|| "www.example".to_owned());
        let http = HttpProbe {
            tls: Some(tls),
            expect_body,
            ..http("/sni")
        };
        let result = first(probe(ProbeKind::Http(http)), port).await;
        check(row, result, problem);
    }
}

/// A server that answers every connection with these bytes and keeps it open.
async fn answering(bytes: &'static [u8]) -> u16 {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        use tokio::io::AsyncWriteExt as _;
        let mut kept = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.write_all(bytes).await;
            kept.push(stream);
        }
    });
    port
}

#[tokio::test]
async fn servers_that_do_it_wrong() {
    for (name, bytes, problem) in [
        ("silent", &b""[..], "no answer in time"),
        (
            "another protocol",
            b"SSH-2.0-OpenSSH\r\n",
            "not an answer of HTTP",
        ),
        ("half", b"HTTP/1.1 200 OK\r\nX: ", "no answer in time"),
        ("flood", &[b'A'; 1 << 20], "not an answer of HTTP"),
        (
            "endless body",
            b"HTTP/1.1 200 OK\r\nContent-Length: 4294967295\r\n\r\nx",
            "no answer in time",
        ),
    ] {
        let port = answering(bytes).await;
        let http = HttpProbe {
            expect_body: Some("well".into()),
            ..http("/")
        };
        let result = first(probe(ProbeKind::Http(http)), port).await;
        check(name, result, Some(problem));
    }
}

#[tokio::test]
async fn connections_and_pings() {
    let open = answering(b"").await;
    for (name, kind, port, problem) in [
        ("open", ProbeKind::Tcp, open, None),
        (
            "closed",
            ProbeKind::Tcp,
            free_port(),
            Some("connection refused"),
        ),
    ] {
        check(name, first(probe(kind), port).await, problem);
    }
    let foreign = Probe {
        source: Some(Ipv4Addr::new(192, 0, 2, 77).into()),
        ..probe(ProbeKind::Tcp)
    };
    let result = first(foreign, open).await;
    check("source", result, Some("cannot send from 192.0.2.77"));
    if nix::unistd::geteuid().is_root() {
        check("ping", first(probe(ProbeKind::Icmp), 0).await, None);
        let mut outside = Listener::start(vec![Watched {
            probe: Some(probe(ProbeKind::Icmp)),
            targets: vec![Target {
                address: std::net::Ipv6Addr::LOCALHOST.into(),
                ..watched(0).targets.remove(0)
            }],
            ..watched(0)
        }]);
        let OutsideWord::Probe(record) = word(&mut outside).await else {
            panic!("another word");
        };
        assert_eq!(record.up, Some(true), "{}", record.detail);
    }
}

#[tokio::test]
async fn queries_to_dnsmasq() {
    let port = free_port();
    let port_text = format!("--port={port}");
    let _program = Program::start(
        "dnsmasq",
        &[
            "--keep-in-foreground",
            "--no-resolv",
            "--no-hosts",
            "--conf-file=/dev/null",
            "--pid-file=",
            "--listen-address=127.0.0.1",
            "--bind-interfaces",
            "--address=/host.example/192.0.2.1",
            "--local=/example/",
            &port_text,
        ],
    );
    listening(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await;
    for (name, query, problem) in [
        ("there", "host.example", None),
        ("not there", "other.example", Some("NameError")),
        (
            "refused",
            "elsewhere.test",
            Some("the server answers Refused"),
        ),
    ] {
        let dns = ProbeKind::Dns(DnsProbe {
            query: query.to_owned(),
        });
        check(name, first(probe(dns), port).await, problem);
    }
    let silent = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let dns = ProbeKind::Dns(DnsProbe {
        query: "host.example".to_owned(),
    });
    let port = silent.local_addr().unwrap().port();
    check(
        "silent",
        first(probe(dns), port).await,
        Some("no answer in time"),
    );
}

#[tokio::test]
async fn a_server_falls_and_rises() {
    let port = free_port();
    let serve = || std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    let mut outside = Listener::start(vec![Watched {
        probe: Some(probe(ProbeKind::Tcp)),
        ..watched(port)
    }]);
    let next = async |outside: &mut Listener| match word(outside).await {
        OutsideWord::Probe(record) => (record.up, record.streak),
        other => panic!("{other:?}"),
    };
    assert_eq!(next(&mut outside).await, (Some(false), 0));
    let listener = serve();
    assert_eq!(next(&mut outside).await, (Some(false), 1));
    assert_eq!(next(&mut outside).await, (Some(true), 0));
    drop(listener);
    assert_eq!(next(&mut outside).await, (Some(true), 1));
    assert_eq!(next(&mut outside).await, (Some(false), 0));
}

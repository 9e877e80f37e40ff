//! Real web servers.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;

use super::Namespace;
use super::client;
use super::process::{Process, wait_until};
use super::scratch::Scratch;

/// Sizes around everything that has an edge: nothing, one byte, one segment
/// of 1,460 and its neighbours, Steerline's short-flow limit of 15,360, and so
/// many that they wrap what counts in 16 bits.
pub const PAYLOAD_SIZES: [usize; 12] = [
    0, 1, 2, 1_459, 1_460, 1_461, 15_359, 15_360, 15_361, 100_000, 1_000_000, 10_000_000,
];

const LIMIT: Duration = Duration::from_secs(10);
const ECHO_MODULE: &str = "/usr/lib/nginx/modules/ngx_http_echo_module.so";

/// How an nginx behaves.
#[derive(Clone, Debug)]
pub struct NginxOptions {
    /// What it calls itself in the header `X-Server` and in the body of `/`.
    pub name: String,
    /// Where it listens.
    pub listen: SocketAddr,
    /// How long it may wait before an answer: [`Server::set_delay`] chooses
    /// one of these, and the first is in force at the start.
    pub delays: Vec<Duration>,
    /// How long it keeps an idle connection; none to close first, always.
    pub keepalive: Option<Duration>,
    /// Sizes that it serves under `/bytes/SIZE`.
    pub payloads: Vec<usize>,
}

impl NginxOptions {
    /// A prompt server on port 80 of `address` that closes first and has the
    /// payloads of [`PAYLOAD_SIZES`].
    pub fn new(name: &str, address: impl Into<IpAddr>) -> Self {
        Self {
            name: name.to_owned(),
            listen: SocketAddr::new(address.into(), 80),
            delays: vec![Duration::ZERO],
            keepalive: None,
            payloads: PAYLOAD_SIZES.to_vec(),
        }
    }

    /// The same with a delay before every answer.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delays[0] = delay;
        self
    }

    /// The same, able to change to this delay as well.
    pub fn may_delay(mut self, delay: Duration) -> Self {
        self.delays.push(delay);
        self
    }
}

/// A running nginx.
///
/// A server that resets needs none of this: nobody has to listen on its port.
#[derive(Debug)]
pub struct Server {
    process: Process,
    namespace: Namespace,
    options: NginxOptions,
    scratch: Scratch,
}

/// A line of a server's access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The client as the server saw it.
    pub client: SocketAddr,
    /// What it asked for.
    pub path: String,
    /// What it got.
    pub status: u16,
}

impl Server {
    /// Starts nginx in `namespace` and returns once it accepts connections.
    pub fn nginx(namespace: &Namespace, options: NginxOptions) -> Result<Self> {
        let scratch = Scratch::new()?;
        let payloads = scratch.file("files/bytes");
        fs::create_dir_all(&payloads)?;
        for size in &options.payloads {
            fs::write(payloads.join(size.to_string()), client::payload(*size))?;
        }
        let configuration = scratch.file("nginx.conf");
        fs::write(&configuration, configure(&options, scratch.path())?)?;
        let errors = fs::File::create(scratch.file("stderr.log"))?;
        let mut command = namespace.command("nginx");
        command
            .arg("-c")
            .arg(&configuration)
            .arg("-e")
            .arg(scratch.file("error.log"))
            .arg("-p")
            .arg(scratch.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors);
        let mut server = Self {
            process: Process::start(&mut command)?,
            namespace: namespace.clone(),
            options,
            scratch,
        };
        let what = format!("{} accepts connections", server.options.name);
        wait_until(&what, LIMIT, || {
            server.check_alive()?;
            let listen = server.options.listen;
            let connected = server
                .namespace
                .enter(|| TcpStream::connect_timeout(&listen, LIMIT).is_ok())?;
            Ok(connected.then_some(()))
        })?;
        Ok(server)
    }

    /// Changes the delay, for all requests that come from now on, to one of
    /// those that the options list.
    ///
    /// By a file that nginx looks for at every request: with the echo module,
    /// an nginx of one process does not survive a reload.
    pub fn set_delay(&self, delay: Duration) -> Result<()> {
        let delays = &self.options.delays;
        let chosen = delays
            .iter()
            .position(|known| *known == delay)
            .with_context(|| format!("{delay:?} is none of {delays:?}"))?;
        for index in 1..delays.len() {
            let flag = self.scratch.file(&delay_flag(index));
            if index == chosen {
                fs::write(&flag, "")?;
            } else if flag.exists() {
                fs::remove_file(&flag)?;
            }
        }
        Ok(())
    }

    fn check_alive(&mut self) -> Result<()> {
        if let Some(status) = self.process.ended()? {
            let log = |name| fs::read_to_string(self.scratch.file(name)).unwrap_or_default();
            bail!(
                "{} ended ({status})\n{}{}",
                self.options.name,
                log("stderr.log"),
                log("error.log")
            );
        }
        Ok(())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.options.name
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.options.listen
    }

    /// Its process id.
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// Every request it has answered, in the order in which answers ended. A
    /// client that saw its connection close finds its request here.
    pub fn accesses(&self) -> Result<Vec<Access>> {
        let path = self.scratch.file("access.log");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path:?}"))?;
        text.lines()
            .map(|line| parse_access(line).with_context(|| format!("access log: {line:?}")))
            .collect()
    }

    /// Ends it as a crash would: connections are reset.
    pub fn kill(mut self) -> Result<()> {
        self.process.signal(Signal::SIGKILL)?;
        self.process.wait(LIMIT)?;
        Ok(())
    }
}

fn parse_access(line: &str) -> Option<Access> {
    let mut words = line.split(' ');
    let address = words.next()?.parse().ok()?;
    let port = words.next()?.parse().ok()?;
    Some(Access {
        client: SocketAddr::new(address, port),
        status: words.next()?.parse().ok()?,
        path: words.next()?.to_owned(),
    })
}

/// The whole configuration file. One process does everything: a master would
/// leave its worker behind when it is killed.
fn configure(options: &NginxOptions, directory: &Path) -> Result<String> {
    let NginxOptions {
        name,
        listen,
        delays,
        keepalive,
        ..
    } = options;
    let directory = directory
        .to_str()
        .context("the directory for temporary files has a name that is no text")?;
    let keepalive = keepalive.map_or(0, |time| time.as_secs());
    let mut text = String::new();
    writeln!(
        text,
        r#"load_module {ECHO_MODULE};
user root;
daemon off;
master_process off;
pid {directory}/nginx.pid;
error_log {directory}/error.log warn;
events {{ worker_connections 4096; }}
http {{
    log_format plain '$remote_addr $remote_port $status $request_uri';
    access_log {directory}/access.log plain;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    default_type application/octet-stream;
    keepalive_timeout {keepalive};
    server {{
        listen {listen} backlog=4096;
        add_header X-Server {name} always;
        location = / {{ echo_sleep $delay; echo -n {name}; }}
        location /bytes/ {{ echo_sleep $delay; echo_exec /files$uri; }}
        location /files/ {{ internal; alias {directory}/files/; }}
        set $delay {:.3};"#,
        delays.first().map_or(0.0, Duration::as_secs_f64)
    )?;
    for (index, delay) in delays.iter().enumerate().skip(1) {
        let (flag, seconds) = (delay_flag(index), delay.as_secs_f64());
        writeln!(
            text,
            "        if (-f {directory}/{flag}) {{ set $delay {seconds:.3}; }}"
        )?;
    }
    text.push_str("    }\n}\n");
    Ok(text)
}

/// The file whose presence puts delay `index` in force.
fn delay_flag(index: usize) -> String {
    format!("delay-{index}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_lines_are_read() {
        let rows = [
            (
                "10.1.0.3 40000 200 /bytes/5",
                Some(Access {
                    client: SocketAddr::from(([10, 1, 0, 3], 40_000)),
                    path: "/bytes/5".to_owned(),
                    status: 200,
                }),
            ),
            ("10.1.0.3 40000 200", None),
            ("", None),
        ];
        for (line, expected) in rows {
            assert_eq!(parse_access(line), expected, "{line:?}");
        }
    }
}

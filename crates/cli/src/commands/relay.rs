//! `outbox relay`: delivers what any application enqueued to brokers and endpoints, until it is told to
//! stop.

mod check;
mod serve;

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use outbox_dashboard::Access;
use tokio_util::task::AbortOnDropHandle;

use crate::Context;
use crate::config::{self, AnySink, Config, LogFormat};
use crate::failure::{Code, Failure};
use crate::output::Output;
use crate::server::{AccessArgs, Desks, Metrics, Readiness, Server, Shown, may_listen};
use crate::signals::{Signal, Signals};
use crate::telemetry::Telemetry;
use serve::Relay;

/// A configuration to begin with.
const EXAMPLE: &str = include_str!("relay/example.toml");

/// Deliver messages to brokers and endpoints, as a configuration file says
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  outbox relay --init                      writes outbox.toml, with everything that can be set
  outbox relay --check                     tries the databases and the brokers in it
  outbox relay --config /etc/outbox.toml   runs until SIGTERM or Ctrl-C

SIGTERM and Ctrl-C let what is being published finish, up to the file's stop_deadline; a second one does
not. SIGHUP reads the file again; one that makes no sense is logged, and the relay goes on as before. Logs
go to standard error, as JSON with --json or as the file says; RUST_LOG in the environment wins over the
file's level. Any number of relays can run with the same file: they share the partitions.")]
pub(crate) struct Args {
    /// Write a configuration file to begin with; an existing one stays as it is
    #[arg(long, conflicts_with = "check")]
    init: bool,
    /// Read the file, try every database and every broker, deliver nothing
    #[arg(long)]
    check: bool,
    /// Serve a dashboard here, and /metrics, /healthz and /readyz
    #[arg(long, value_name = "ADDRESS", value_parser = crate::format::address, help_heading = "Dashboard")]
    dashboard: Option<SocketAddr>,
    /// Serve /metrics, /healthz and /readyz here, to everybody who gets there
    #[arg(long, value_name = "ADDRESS", value_parser = crate::format::address, help_heading = "Dashboard")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    access: AccessArgs,
}

impl Args {
    /// Who may see the dashboard, if there is one. Users are read here, and not again.
    fn access(&self) -> Result<Option<Access>, Failure> {
        match self.dashboard {
            Some(listen) => {
                let access = self.access.access()?;
                may_listen(&access, listen)?;
                Ok(Some(access))
            }
            None if self.access.are_given() => {
                let message =
                    "--operator, --payloads and --users are for a dashboard, and there is none";
                Err(Failure::usage(message).way_out("add it: --dashboard 127.0.0.1:8080"))
            }
            None => Ok(None),
        }
    }
}

pub(crate) async fn run(
    args: &Args,
    context: &Context,
    output: &mut Output,
) -> Result<(), Failure> {
    let path = context.target.config();
    if args.init {
        return init(path, output);
    }
    context.target.leaves_it_to_the_file()?;
    let access = args.access()?;
    let (mut config, sinks) = read(path)?;
    if args.check {
        return check::run(path, &config, &sinks, output).await;
    }
    let json = output.is_json() || config.log.format == LogFormat::Json;
    let telemetry = Telemetry::start(&config.log.level.0.0, json)?;
    let mut signals = Signals::new()?;
    let served = Served::start(args, access, &telemetry).await?;
    let mut relay = served.relay(&config, sinks);
    loop {
        let told = tokio::select! {
            told = signals.next() => told,
            () = relay.ended() => {
                let message = "a database is not served any more, for a reason that the log has";
                return Err(Failure::new(Code::No, message));
            }
        };
        match told {
            Signal::Stop => return stop(relay, signals).await,
            Signal::Reload => match read(path) {
                Err(failure) => tracing::error!("not reloaded: {}", failure.on_one_line()),
                Ok((new, _)) if new == config => tracing::info!("reloaded: nothing has changed"),
                Ok((new, sinks)) => {
                    let reloading = async {
                        check::never(&new).await?;
                        relay.stop().await;
                        Ok::<(), Failure>(())
                    };
                    let reloaded = tokio::select! {
                        reloaded = reloading => reloaded,
                        () = signals.stop() => return stop(relay, signals).await,
                    };
                    match reloaded {
                        Err(failure) => tracing::error!("not reloaded: {}", failure.on_one_line()),
                        Ok(()) => {
                            config = new;
                            relay = served.relay(&config, sinks);
                            tracing::info!("reloaded");
                        }
                    }
                }
            },
        }
    }
}

/// What is served beside the relay, for as long as it runs.
#[derive(Default)]
struct Served {
    access: Option<Access>,
    servers: Vec<Server>,
    _serving: Vec<AbortOnDropHandle<()>>,
}

impl Served {
    /// Begins to serve what is asked for.
    async fn start(
        args: &Args,
        access: Option<Access>,
        telemetry: &Telemetry,
    ) -> Result<Self, Failure> {
        // Before an outbox starts, or nothing of it is counted.
        let metrics = match (args.dashboard, args.metrics) {
            (None, None) if !telemetry.exports() => return Ok(Self::default()),
            _ => Metrics::install(telemetry)?,
        };
        let mut served = Self::default();
        let nothing = || Shown {
            ready: Readiness::new([]),
            desks: None,
        };
        if let (Some(listen), Some(access)) = (args.dashboard, access) {
            served.access = Some(access.clone());
            let server = Server::of_desks(Some(metrics.clone()), access, listen, nothing())?;
            served.add(server, listen).await?;
        }
        if let Some(listen) = args.metrics {
            let server = Server::open(Some(metrics), nothing());
            served.add(server, listen).await?;
        }
        Ok(served)
    }

    async fn add(&mut self, server: Server, listen: SocketAddr) -> Result<(), Failure> {
        let (address, serving) = server.clone().start(listen).await?;
        tracing::info!(%address, "serving");
        self.servers.push(server);
        self._serving.push(AbortOnDropHandle::new(serving));
        Ok(())
    }

    /// Starts the relay, and shows it.
    fn relay(&self, config: &Config, sinks: Vec<AnySink>) -> Relay {
        let names = || {
            let databases = config.databases.iter();
            databases.map(|database| database.name().to_owned())
        };
        let ready = Readiness::new(names());
        let access = self.access.as_ref();
        let desks = access.map(|access| Desks::new(names(), access.clone()));
        for server in &self.servers {
            server.show(Shown {
                ready: Arc::clone(&ready),
                desks: desks.clone(),
            });
        }
        Relay::start(config, sinks, ready, desks)
    }
}

async fn stop(mut relay: Relay, mut signals: Signals) -> Result<(), Failure> {
    tracing::info!("stopping");
    tokio::select! {
        () = relay.stop() => {
            tracing::info!("stopped");
            Ok(())
        }
        () = signals.stop() => {
            let message = "stopped at once; what was being published comes again";
            Err(Failure::new(Code::No, message))
        }
    }
}

fn init(path: &Path, output: &mut Output) -> Result<(), Failure> {
    let mut options = OpenOptions::new();
    let written = options
        .write(true)
        .create_new(true)
        .open(path)
        .and_then(|mut file| file.write_all(EXAMPLE.as_bytes()));
    let shown = path.display();
    match written {
        Ok(()) => output.line(format!(
            "wrote {shown}: change what it says, and try it with `outbox relay --check`"
        )),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let message = format!("{shown} is there already, and stays as it is");
            Err(Failure::new(Code::Missing, message)
                .way_out("write another one with --config FILE"))
        }
        Err(error) => Err(Failure::usage(format!("cannot write {shown}: {error}"))),
    }
}

/// The configuration, and what each of its routes goes to. Nothing is connected yet.
fn read(path: &Path) -> Result<(Config, Vec<AnySink>), Failure> {
    let file = config::File::read(path)?;
    let config = file.config()?;
    let sinks = file.sinks(&config)?;
    Ok((config, sinks))
}

//! The driver as a whole: its parts put together, served, and taken down in order.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::cli::{Checks, Configuration};
use crate::controller::Controller;
use crate::health::{self, Readiness};
use crate::metrics::{self, Metrics};
use crate::mount::daemon::mounter::Mounter;
use crate::mount::daemon::private_dir::PrivateDir;
use crate::mount::daemon::tidy::tidy_up;
use crate::mount::host::{self, HostError};
use crate::node::Node;
use crate::registration::{Registered, Registration, RegistrationError};
use crate::rpc;
use crate::server::{self, Ended, Endpoint, ListenError, Listener};
use crate::server_map::{MapError, ServerMap};
use crate::telemetry;

/// Threads that may wait for exports at once, over all of them; each export has its own bound below this. They are
/// started when they are needed: a hundred exports of dead servers leave some to the others.
const BLOCKING_THREADS: usize = 4096;
/// How long a thread without work is kept: a burst of calls comes in seconds, memory is wanted back in the end.
const THREAD_KEPT: Duration = Duration::from_secs(5);

/// Why the driver does not run.
#[derive(Debug, Error)]
enum StartError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    ServerMap(#[from] MapError),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Metrics(#[from] health::BindError),
    #[error("cannot start a worker process: {0}; the driver's binary must be executable through /proc")]
    Workers(std::io::Error),
    #[error("cannot use {path}: {error}; name a writable folder with {flag}")]
    Folder { path: PathBuf, error: std::io::Error, flag: &'static str },
    #[error("cannot start: {0}")]
    Runtime(#[from] std::io::Error),
    #[error("serving failed: {0}")]
    Serve(#[from] tonic::transport::Error),
    #[error("cannot make the driver known to the kubelet any longer: {0}")]
    Registration(#[from] RegistrationError),
}

/// Runs the driver until it is told to end. Gives the status to exit with.
#[must_use]
pub fn run(configuration: Configuration) -> ExitCode {
    telemetry::init(configuration.log_format, configuration.log_level);
    for remark in &configuration.remarks {
        tracing::warn!("{remark}");
    }
    // Modes are what requests ask for, not what the environment leaves of them.
    nix::sys::stat::umask(nix::sys::stat::Mode::empty());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(THREAD_KEPT)
        .build();
    let ended = runtime.map_err(StartError::from).and_then(|runtime| {
        let ended = runtime.block_on(serve(configuration));
        // A thread that still waits for a dead server must not hold up the end.
        runtime.shutdown_background();
        ended
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the driver ends");
            ExitCode::FAILURE
        }
    }
}

async fn serve(configuration: Configuration) -> Result<(), StartError> {
    check_host(&configuration.checks)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let listener = Listener::bind(&configuration.endpoint).await?;
    let metrics = Metrics::new(&configuration.driver_name);
    let mounter = start_mounter(&configuration, &metrics).await?;
    let ready = Readiness::default();
    if let Some(address) = &configuration.metrics_address {
        tokio::spawn(health::serve(health::bind(address)?, Arc::clone(&metrics), ready.clone()));
    }
    let node = if configuration.roles.node { Some(start_node(&configuration, Arc::clone(&mounter))?) } else { None };
    let controller = configuration.roles.controller.then(|| {
        Controller::start(configuration.settings.clone(), Arc::clone(&mounter), &configuration.working_mount_dir)
    });
    // Last of all: the kubelet calls a driver as soon as it finds it.
    let registration = match &configuration.registration {
        Some(settings) => Some(Registration::open(settings, &configuration.driver_name).await?),
        None => None,
    };
    if let Some(registration) = &registration {
        let registered = registration.registered();
        ready.follow(registered.clone());
        metrics.read(metrics::REGISTERED, move || {
            vec![(String::new(), u64::from(*registered.borrow() == Registered::Yes))]
        });
    }
    tracing::info!(
        endpoint = %configuration.endpoint,
        driver = configuration.driver_name,
        version = env!("CARGO_PKG_VERSION"),
        controller = controller.is_some(),
        node = node.as_ref().map(|node| node.settings().id.as_str()),
        "serving"
    );
    if let Some(node) = &node {
        node.observe(&metrics);
    }
    if let Some(controller) = &controller {
        controller.observe(&metrics);
    }
    mounter.observe(&metrics);
    let services = rpc::services(&configuration.driver_name, configuration.topology, controller.clone(), node, metrics);
    ready.set(true);
    let (tell_to_end, told_to_end) = watch::channel(false);
    let told = || {
        let mut told_to_end = told_to_end.clone();
        async move {
            // Its sender lives as long as this function.
            let _ = told_to_end.wait_for(|told| *told).await;
        }
    };
    let signals = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        ready.set(false);
        tracing::info!("told to end: running calls may finish");
        tell_to_end.send_replace(true);
        Ok::<_, StartError>(())
    };
    let registering = async {
        match registration {
            Some(registration) => Ok(registration.serve(told()).await?),
            None => Ok(()),
        }
    };
    let serving = async { Ok(server::serve(listener, services, told(), configuration.grace_period).await?) };
    let (ended, (), ()) = tokio::try_join!(serving, registering, signals)?;
    if let Some(controller) = controller {
        controller.stop().await;
    }
    // Work that goes on in the background holds the mounter for a while.
    mounter.private().remove();
    match ended {
        Ended::Drained => tracing::info!("ended"),
        Ended::CutShort => tracing::warn!("ended with calls still running: their retries find what they left"),
    }
    Ok(())
}

/// Refuses to serve where volumes could not be mounted, or pods would not see them.
fn check_host(checks: &Checks) -> Result<(), HostError> {
    host::is_new_enough()?;
    if checks.mounting {
        host::can_mount()?;
    }
    checks.kubelet_dir.as_deref().map_or(Ok(()), host::is_kubelet_dir)
}

async fn start_mounter(configuration: &Configuration, metrics: &Metrics) -> Result<Arc<Mounter>, StartError> {
    let place = &configuration.working_mount_dir;
    let private = PrivateDir::create(place).map_err(|error| StartError::Folder {
        path: place.clone(),
        error,
        flag: "--working-mount-dir",
    })?;
    let map = ServerMap::open(&configuration.servers)?;
    map.follow();
    let followed = Arc::clone(&map);
    metrics.read(metrics::SERVER_MAP_REFUSED, move || vec![(String::new(), u64::from(followed.is_refused()))]);
    let mounter = Mounter::start(configuration.limits, private, metrics.mounts(), map).map_err(StartError::Workers)?;
    tidy_up(place, &mounter).await;
    Ok(mounter)
}

fn start_node(configuration: &Configuration, mounter: Arc<Mounter>) -> Result<Arc<Node>, StartError> {
    let state = state_folder(configuration);
    Node::start(configuration.node.clone(), mounter, &state).map_err(|error| StartError::Folder {
        path: state,
        error,
        flag: "--endpoint",
    })
}

/// Where the node plugin keeps what it must know after a restart: beside its socket, which the kubelet's folder keeps.
fn state_folder(configuration: &Configuration) -> PathBuf {
    match &configuration.endpoint {
        Endpoint::Unix(path) => path.parent().unwrap_or(Path::new("/")).to_owned(),
        Endpoint::Tcp(_) => configuration.working_mount_dir.join(format!("{}-state", configuration.driver_name)),
    }
}

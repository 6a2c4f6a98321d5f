//! Logs: one line an event, to standard error, as text or as JSON.

use tracing::Level;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

/// What a log line looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines: one JSON object a line.
    Json,
}

/// Begins to log this driver's events of this level and above, and the warnings of the libraries below it.
pub fn init(format: LogFormat, level: Level) {
    let targets = Targets::new().with_default(LevelFilter::WARN).with_target(env!("CARGO_CRATE_NAME"), level);
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    let lines = match format {
        LogFormat::Text => lines.with_target(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed(),
    };
    // A second call (tests that start several drivers in one process) keeps the first one's choice.
    let _ = tracing_subscriber::registry().with(lines.with_filter(targets)).try_init();
}

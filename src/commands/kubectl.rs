//! `kubectl nfs-csi`: the program as a plugin of kubectl. It runs a command in the controller's pod, where exports can be
//! mounted and the metrics are.
//!
//! kubectl finds a plugin by the name of its file, in which dashes of the plugin's own name are underscores. The
//! cluster is kubectl's matter: this program only runs it, with the flags that say which cluster is meant.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is the command's own output")]

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use serde::Deserialize;
use thiserror::Error;

use super::FAILED;

/// The name of the plugin's file.
const FILE: &str = "kubectl-nfs_csi";
/// The commands that can be run in the controller's pod.
const COMMANDS: [&str; 5] = ["list", "jobs", "check", "trash", "doctor"];
/// What chooses the controller's pods, unless it is said.
const SELECTOR: &str = "app=csi-nfs-controller";
/// The driver's container in these pods, and its program there.
const CONTAINER: &str = "nfs";
const PROGRAM: &str = "/nfs-csi";

const USAGE: &str = "\
Runs a command of nfs-csi in the controller's pod, which it finds by its label.

usage: kubectl nfs-csi [FLAGS] COMMAND [ARGUMENTS]

commands (kubectl nfs-csi COMMAND --help says more):
  list    what is on an export; the cluster's PersistentVolumes are compared with it (--orphans shows only what is left over)
  jobs    the copies, snapshots and removals that the controller is at work on
  check   whether all that the driver keeps on an export fits together
  trash   what was deleted and is kept, to bring it back or to free it
  doctor  whether the controller, a server and an export are as the driver needs them

flags, before or behind the command:
  -n, --namespace NAME    the controller's namespace [default: all are looked through]
  -l, --selector LABEL    the label of the controller's pods [default: app=csi-nfs-controller]
      --context NAME      kubectl's context
      --kubeconfig FILE   kubectl's configuration
";

/// Why the plugin did not do its work.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
enum PluginError {
    #[error("cannot run kubectl: {0}; it has to be in $PATH")]
    Kubectl(std::io::Error),

    #[error("kubectl {what} failed: see above")]
    Refused { what: String },

    #[error("what kubectl get pods prints cannot be read: {0}")]
    Pods(serde_json::Error),

    #[error(
        "no pod with the label {selector} is running: see `kubectl get pods -A -l {selector}`; name another label with --selector"
    )]
    NoPod { selector: String },

    #[error("cannot read {path}: {error}")]
    File { path: String, error: std::io::Error },
}

/// What the plugin is asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// The flags that say which cluster is meant, for each call of kubectl.
    cluster: Vec<OsString>,
    namespace: Option<OsString>,
    selector: String,
    /// The command and its arguments; or what is wrong with them, empty for a request for help.
    command: Result<Vec<OsString>, String>,
}

/// What this process is asked to do as a plugin; none if it is not called as one.
#[must_use]
pub fn invocation(arguments: impl IntoIterator<Item = OsString>) -> Option<Plugin> {
    let mut arguments = arguments.into_iter();
    let program = arguments.next()?;
    (Path::new(&program).file_name() == Some(OsStr::new(FILE))).then(|| Plugin::of(arguments))
}

impl Plugin {
    fn of(arguments: impl Iterator<Item = OsString>) -> Self {
        let mut plugin =
            Self { cluster: Vec::new(), namespace: None, selector: SELECTOR.into(), command: Err(String::new()) };
        let (mut arguments, mut command) = (arguments, Vec::new());
        while let Some(argument) = arguments.next() {
            let text = argument.to_string_lossy();
            let (flag, value) = text.split_once('=').map_or((&*text, None), |(flag, value)| (flag, Some(value)));
            if !matches!(flag, "-n" | "--namespace" | "-l" | "--selector" | "--context" | "--kubeconfig") {
                command.push(argument);
                continue;
            }
            let Some(value) = value.map(OsString::from).or_else(|| arguments.next()) else {
                plugin.command = Err(format!("{flag} has no value"));
                return plugin;
            };
            match flag {
                "-n" | "--namespace" => plugin.namespace = Some(value),
                "-l" | "--selector" => plugin.selector = value.to_string_lossy().into_owned(),
                flag => plugin.cluster.extend([flag.into(), value]),
            }
        }
        plugin.command = match command.first().map(|first| first.to_string_lossy().into_owned()) {
            Some(first) if COMMANDS.contains(&first.as_str()) => Ok(command),
            None => Err(String::new()),
            Some(first) if matches!(first.as_str(), "help" | "-h" | "--help") => Err(String::new()),
            Some(other) => Err(format!("{other} is no command of the plugin")),
        };
        plugin
    }

    fn kubectl(&self) -> Command {
        let mut kubectl = Command::new("kubectl");
        kubectl.args(&self.cluster);
        kubectl
    }

    /// What kubectl prints for these arguments.
    fn ask(&self, arguments: &[&OsStr]) -> Result<Vec<u8>, PluginError> {
        let mut kubectl = self.kubectl();
        let output = kubectl.args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
        let output = output.map_err(PluginError::Kubectl)?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let what: Vec<_> = arguments.iter().take(2).map(|argument| argument.to_string_lossy()).collect();
        Err(PluginError::Refused { what: what.join(" ") })
    }

    /// The controller's pods that run, the ready ones first.
    fn pods(&self) -> Result<Vec<Pod>, PluginError> {
        let mut arguments = vec![OsStr::new("get"), OsStr::new("pods")];
        match &self.namespace {
            Some(namespace) => arguments.extend([OsStr::new("--namespace"), namespace]),
            None => arguments.push(OsStr::new("--all-namespaces")),
        }
        arguments.extend(["--selector", self.selector.as_str(), "--output", "json"].map(OsStr::new));
        let pods: Pods = serde_json::from_slice(&self.ask(&arguments)?).map_err(PluginError::Pods)?;
        let mut running: Vec<Pod> = pods.items.into_iter().filter(Pod::is_running).collect();
        if running.is_empty() {
            return Err(PluginError::NoPod { selector: self.selector.clone() });
        }
        running.sort_by_key(|pod| !pod.is_ready());
        Ok(running)
    }

    /// Runs a command in a pod, with this as its standard input. Gives its status.
    fn exec(&self, pod: &Pod, command: &[OsString], input: Option<&[u8]>) -> Result<u8, PluginError> {
        let mut kubectl = self.kubectl();
        kubectl.args(["exec", "--namespace", &pod.metadata.namespace, &pod.metadata.name, "--container", CONTAINER]);
        if input.is_some() {
            kubectl.arg("--stdin").stdin(Stdio::piped());
        }
        let mut running = kubectl.args(["--", PROGRAM]).args(command).spawn().map_err(PluginError::Kubectl)?;
        if let (Some(mut pipe), Some(input)) = (running.stdin.take(), input) {
            // Where kubectl does not read all of it, it has said why.
            let _ = pipe.write_all(input);
        }
        let status = running.wait().map_err(PluginError::Kubectl)?;
        Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED))
    }

    /// The cluster's PersistentVolumes for `list`: kubectl's, or those of a file that the command names here.
    fn volumes(&self, command: &mut Vec<OsString>) -> Result<Vec<u8>, PluginError> {
        let given = take_flag(command, "--pvs");
        command.extend(["--pvs", "-"].map(OsString::from));
        let Some(path) = given else {
            return self.ask(&["get", "persistentvolumes", "--output", "json"].map(OsStr::new));
        };
        let mut volumes = Vec::new();
        let read = if path == "-" {
            std::io::stdin().lock().read_to_end(&mut volumes).map(|_| volumes)
        } else {
            std::fs::read(&path)
        };
        read.map_err(|error| PluginError::File { path: path.to_string_lossy().into_owned(), error })
    }

    fn carry_out(&self, mut command: Vec<OsString>) -> Result<u8, PluginError> {
        let pods = self.pods()?;
        let is_help = command.iter().any(|argument| argument == "--help" || argument == "-h");
        let input = if command[0] == "list" && !is_help { Some(self.volumes(&mut command)?) } else { None };
        if command[0] != "jobs" || is_help {
            return self.exec(&pods[0], &command, input.as_deref());
        }
        // Any of the replicas may be at work.
        let mut failed = 0;
        for pod in &pods {
            if pods.len() > 1 {
                println!("{}/{}:", pod.metadata.namespace, pod.metadata.name);
            }
            let mut command = command.clone();
            if let Some(address) =
                pod.metrics_address().filter(|_| take_flag(&mut command.clone(), "--metrics-address").is_none())
            {
                command.extend(["--metrics-address".into(), address.into()]);
            }
            failed = failed.max(self.exec(pod, &command, None)?);
        }
        Ok(failed)
    }
}

/// Takes a flag out of a command's arguments; gives its value, if it is there.
fn take_flag(command: &mut Vec<OsString>, flag: &str) -> Option<OsString> {
    let at = command.iter().position(|argument| {
        argument.to_string_lossy().strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    })?;
    let argument = command.remove(at);
    match argument.to_string_lossy().split_once('=') {
        Some((_, value)) => Some(value.into()),
        None => (at < command.len()).then(|| command.remove(at)),
    }
}

/// Runs the plugin. Gives the status to exit with: that of the command in the pod, or 2 where it cannot be run.
#[must_use]
pub fn run(plugin: &Plugin) -> ExitCode {
    let command = match &plugin.command {
        Ok(command) => command.clone(),
        Err(wrong) if wrong.is_empty() => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(wrong) => {
            eprintln!("kubectl nfs-csi: {wrong} (see --help)");
            return ExitCode::from(FAILED);
        }
    };
    match plugin.carry_out(command) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("kubectl nfs-csi: {error}");
            ExitCode::from(FAILED)
        }
    }
}

#[derive(Deserialize)]
struct Pods {
    items: Vec<Pod>,
}

#[derive(Deserialize)]
struct Pod {
    metadata: Metadata,
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    namespace: String,
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize)]
struct Spec {
    containers: Vec<Container>,
}

#[derive(Deserialize)]
struct Container {
    name: String,
    #[serde(default)]
    args: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: String,
    container_statuses: Vec<ContainerStatus>,
}

#[derive(Deserialize)]
struct ContainerStatus {
    name: String,
    #[serde(default)]
    ready: bool,
}

impl Pod {
    fn is_running(&self) -> bool {
        self.status.phase == "Running" && self.metadata.deletion_timestamp.is_none()
    }

    fn is_ready(&self) -> bool {
        self.status.container_statuses.iter().any(|status| status.name == CONTAINER && status.ready)
    }

    /// Where the driver answers metrics, as its flag says.
    fn metrics_address(&self) -> Option<&str> {
        let driver = self.spec.containers.iter().find(|container| container.name == CONTAINER)?;
        driver.args.iter().find_map(|argument| argument.strip_prefix("--metrics-address="))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin(arguments: &[&str]) -> Plugin {
        let all = ["/home/me/.krew/bin/kubectl-nfs_csi"].iter().chain(arguments).map(OsString::from);
        invocation(all).unwrap()
    }

    #[test]
    fn it_is_a_plugin_by_the_name_of_its_file() {
        for name in ["nfs-csi", "/usr/bin/nfs-csi", "kubectl-nfs-csi", "kubectl", ""] {
            assert_eq!(invocation([OsString::from(name)]), None, "{name}");
        }
        assert_eq!(invocation([]), None);
        assert_eq!(plugin(&[]).command, Err(String::new()));
    }

    #[test]
    fn kubectl_s_flags_are_kubectl_s_and_the_rest_is_the_command_s() {
        let Plugin { cluster, namespace, selector, command } =
            plugin(&["--context=east", "list", "-n", "nfs", "--export", "nas:/a", "--orphans", "--kubeconfig", "/k"]);
        assert_eq!(cluster, ["--context", "east", "--kubeconfig", "/k"]);
        assert_eq!((namespace, selector.as_str()), (Some("nfs".into()), SELECTOR));
        assert_eq!(command.unwrap(), ["list", "--export", "nas:/a", "--orphans"]);
        assert_eq!(plugin(&["jobs", "-l", "app=mine"]).selector, "app=mine");
        for (arguments, wrong) in
            [(&["controller"][..], "controller"), (&["--orphans", "list"], "--orphans"), (&["list", "-n"], "-n")]
        {
            assert!(plugin(arguments).command.unwrap_err().contains(wrong), "{arguments:?}");
        }
        for arguments in [&["--help"][..], &["-n", "nfs"], &["help"]] {
            assert_eq!(plugin(arguments).command, Err(String::new()), "{arguments:?}");
        }
    }

    #[test]
    fn a_flag_is_taken_out_in_both_forms() {
        for (arguments, value, left) in [
            (&["list", "--pvs", "a", "b"][..], Some("a"), &["list", "b"][..]),
            (&["list", "--pvs=a", "b"], Some("a"), &["list", "b"]),
            (&["list", "--pvsx=a"], None, &["list", "--pvsx=a"]),
            (&["list"], None, &["list"]),
        ] {
            let mut command: Vec<OsString> = arguments.iter().map(OsString::from).collect();
            assert_eq!(take_flag(&mut command, "--pvs"), value.map(OsString::from));
            assert_eq!(command, left);
        }
    }
}

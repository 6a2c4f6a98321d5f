//! csi-driver-nfs's command line: it has no command, and serves all.
//!
//! It is read as Go's `flag` package reads it: one dash or two; a value behind `=` or as the next word; a boolean alone
//! or with `=true` or `=false`; nothing behind the first word that is no flag. A flag with a meaning here is translated
//! into this driver's own, one without (klog's are among them) is reported. This driver's own flags are accepted too.

use std::ffi::{OsStr, OsString};

use crate::volume::access::Mode;

/// Where csi-driver-nfs listens unless its command line says otherwise.
pub(super) const ENDPOINT: &str = "unix:///tmp/csi.sock";

/// Its booleans that have no effect here.
const IGNORED_BOOLEANS: [&str; 10] = [
    "add_dir_header",
    "alsologtostderr",
    "enable-snapshot-compression",
    "legacy_stderr_threshold_behavior",
    "logtostderr",
    "one_output",
    "remove-archived-volume-path",
    "skip_headers",
    "skip_log_headers",
    "use-tar-command-in-snapshot",
];
/// Its flags with a value that have no effect here.
const IGNORED: [&str; 7] = [
    "alsologtostderrthreshold",
    "log_backtrace_at",
    "log_dir",
    "log_file",
    "log_file_max_size",
    "stderrthreshold",
    "vmodule",
];
/// What Go's `flag` package reads as a boolean.
const BOOLEANS: [&str; 12] = ["1", "0", "t", "f", "T", "F", "true", "false", "TRUE", "FALSE", "True", "False"];
/// All permissions without a special bit.
const ALL_PERMISSIONS: u32 = 0o777;

/// What its command line means here.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Translation {
    /// The flags of this driver's command `all`.
    pub(super) flags: Vec<String>,
    /// The log level that `-v` stands for; none if it is not given.
    pub(super) log_level: Option<&'static str>,
    /// What the operator needs to know, a line each.
    pub(super) remarks: Vec<String>,
}

impl Translation {
    fn add(&mut self, name: &str, value: &str) {
        self.flags.push(format!("--{name}={value}"));
    }

    fn add_permissions(&mut self, text: &str) -> Result<(), String> {
        let error =
            || format!("--mount-permissions={text} is no mode: write it in octal, from 0 to 07777, such as 0755");
        let (number, radix) = integer(text).ok_or_else(error)?;
        let bits = u32::try_from(number).ok().and_then(Mode::from_bits).ok_or_else(error)?.bits();
        if radix == 10 && bits > ALL_PERMISSIONS && text.bytes().all(|digit| digit < b'8') {
            return Err(format!(
                "--mount-permissions={text} is decimal for csi-driver-nfs, mode 0{bits:o}: write 0{text} or 0{bits:o}, \
                 whichever is meant"
            ));
        }
        if radix == 10 && bits > 7 {
            self.remarks.push(format!("--mount-permissions={text} is decimal, as for csi-driver-nfs: mode 0{bits:o}"));
        }
        self.add("mount-permissions", &format!("0{bits:o}"));
        Ok(())
    }
}

/// Whether a command line, with the program's name, is one of csi-driver-nfs: it has no command.
pub(super) fn is_command_line(arguments: &[OsString]) -> bool {
    let Some(first) = arguments.get(1) else { return true };
    first.as_encoded_bytes().starts_with(b"-") && !["-h", "--help", "-V", "--version"].iter().any(|own| first == own)
}

/// Translates the arguments behind the program's name. `program` has this driver's own flags and commands.
///
/// # Errors
/// What is wrong, in one line.
pub(super) fn translate(arguments: &[OsString], program: &clap::Command) -> Result<Translation, String> {
    let mut translation = Translation::default();
    let mut ignored = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let word = text(word)?;
        let Some((name, attached)) = flag(word)? else {
            if program.find_subcommand(word).is_some() {
                return Err(format!("the command {word} must be the first argument"));
            }
            translation.remarks.push(format!("{word:?} is no flag: it and all behind it is ignored"));
            break;
        };
        let mut value = || match attached {
            Some(value) => Ok(value),
            None => text(words.next().ok_or_else(|| format!("--{name} needs a value"))?),
        };
        match name {
            "h" | "help" => return Ok(Translation { flags: vec!["--help".into()], ..Translation::default() }),
            "v" => translation.log_level = Some(log_level(value()?)?),
            "endpoint" => translation.add(name, &endpoint(value()?)),
            "mount-permissions" => translation.add_permissions(value()?)?,
            // Without a policy csi-driver-nfs deletes the directory.
            "default-ondelete-policy" => {
                translation.add(name, Some(value()?).filter(|policy| !policy.is_empty()).unwrap_or("delete"));
            }
            "vol-stats-cache-expire-in-minutes" => translation.add("volume-stats-cache", &minutes(value()?)?),
            _ if IGNORED_BOOLEANS.contains(&name) => {
                if let Some(value) = attached.filter(|value| !BOOLEANS.contains(value)) {
                    return Err(format!("--{name}={value} is neither true nor false"));
                }
                ignored.push(name);
            }
            _ if IGNORED.contains(&name) => {
                value()?;
                ignored.push(name);
            }
            _ => match takes_value(program, name) {
                Some(true) => translation.add(name, value()?),
                Some(false) => translation.flags.push(format!("--{}", word.trim_start_matches('-'))),
                None => return Err(format!("there is no flag --{name}")),
            },
        }
    }
    if !ignored.is_empty() {
        ignored.sort_unstable();
        ignored.dedup();
        translation.remarks.push(format!("flags of csi-driver-nfs without effect here: --{}", ignored.join(", --")));
    }
    Ok(translation)
}

fn text(word: &OsStr) -> Result<&str, String> {
    word.to_str().ok_or_else(|| format!("{:?} is not UTF-8", word.to_string_lossy()))
}

/// A flag's name, and its value if that is attached; none if the word ends the flags.
fn flag(word: &str) -> Result<Option<(&str, Option<&str>)>, String> {
    let Some(name) = word.strip_prefix('-').filter(|name| !name.is_empty() && *name != "-") else { return Ok(None) };
    let name = name.strip_prefix('-').unwrap_or(name);
    if name.starts_with(['-', '=']) {
        return Err(format!("{word:?} is no flag"));
    }
    Ok(Some(name.split_once('=').map_or((name, None), |(name, value)| (name, Some(value)))))
}

/// Whether one of this driver's own flags takes a value; none if there is no such flag.
fn takes_value(program: &clap::Command, name: &str) -> Option<bool> {
    let is_named = |argument: &&clap::Arg| {
        argument.get_long() == Some(name) || argument.get_all_aliases().is_some_and(|names| names.contains(&name))
    };
    let own = program.find_subcommand("all")?.get_arguments().find(is_named)?;
    Some(own.get_action().takes_values())
}

/// csi-driver-nfs puts a slash before a socket's path, whether it has one or not.
fn endpoint(text: &str) -> String {
    match text.strip_prefix("unix://") {
        Some(path) if !path.is_empty() => format!("unix:///{}", path.trim_start_matches('/')),
        _ => text.into(),
    }
}

/// csi-driver-nfs's manifests have 5 wherever it runs, and it logs a line for each call from 2 on.
fn log_level(text: &str) -> Result<&'static str, String> {
    match text.parse::<i32>() {
        Ok(..=1) => Ok("warn"),
        Ok(2..=5) => Ok("info"),
        Ok(6..=9) => Ok("debug"),
        Ok(10..) => Ok("trace"),
        Err(_) => Err(format!("-v={text} is no number")),
    }
}

/// For nothing and for less than nothing csi-driver-nfs has its default.
fn minutes(text: &str) -> Result<String, String> {
    match text.strip_prefix('-').map_or_else(|| integer(text), |number| integer(number).map(|_| (0, 10))) {
        Some((0, _)) => Ok("10m".into()),
        Some((minutes, _)) => Ok(format!("{minutes}m")),
        None => Err(format!("--vol-stats-cache-expire-in-minutes={text} is no number")),
    }
}

/// A number as Go writes it, and its radix: `0x`, `0b`, `0o` or `0` come first, and a decimal number has none of them.
fn integer(text: &str) -> Option<(u64, u32)> {
    let text = text.to_ascii_lowercase();
    let radixes = [("0x", 16), ("0b", 2), ("0o", 8), ("0", 8)];
    let prefixed = radixes.iter().find_map(|(prefix, radix)| Some((text.strip_prefix(prefix)?, *radix)));
    let (digits, radix) = prefixed.filter(|_| text != "0").unwrap_or((&text, 10));
    let is_number = digits.bytes().all(|digit| digit.is_ascii_alphanumeric());
    u64::from_str_radix(digits, radix).ok().filter(|_| is_number).map(|number| (number, radix))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::time::Duration;

    use tracing::Level;

    use super::super::{Configuration, Invocation, parse};
    use crate::server::Endpoint;
    use crate::volume::access::{Mode, OnDelete};

    fn parsed(line: &[&str]) -> Result<Configuration, String> {
        match parse(["/nfsplugin"].iter().chain(line).map(OsString::from)).map_err(|answer| answer.line())? {
            Invocation::Serve(configuration) => Ok(*configuration),
            command => panic!("{command:?}"),
        }
    }

    /// What the flags of csi-driver-nfs decide.
    #[derive(Debug, PartialEq)]
    struct Read {
        endpoint: &'static str,
        node: &'static str,
        driver: &'static str,
        permissions: Option<u32>,
        on_delete: OnDelete,
        working_dir: &'static str,
        stats_cache: u64,
        level: Level,
        /// Parts of the lines that are logged at the start.
        remarks: &'static [&'static str],
    }

    /// The command line of its manifests without a release's own flags.
    const PLAIN: Read = Read {
        endpoint: "/csi/csi.sock",
        node: "worker-1",
        driver: "nfs.csi.k8s.io",
        permissions: None,
        on_delete: OnDelete::Delete,
        working_dir: "/tmp",
        stats_cache: 60,
        level: Level::INFO,
        remarks: &[],
    };

    fn are_read(cases: &[(&[&str], Read)]) {
        for (line, expected) in cases {
            let configuration = parsed(line).unwrap_or_else(|error| panic!("{line:?}: {error}"));
            assert_eq!(configuration.remarks.len(), expected.remarks.len(), "{line:?}: {:?}", configuration.remarks);
            for (remark, part) in configuration.remarks.iter().zip(expected.remarks) {
                assert!(remark.contains(part), "{line:?}: {remark}");
            }
            assert!(configuration.roles.controller && configuration.roles.node, "{line:?}");
            assert_eq!(configuration.endpoint, Endpoint::Unix(expected.endpoint.into()), "{line:?}");
            assert_eq!(configuration.node.id, expected.node, "{line:?}");
            assert_eq!(configuration.driver_name, expected.driver, "{line:?}");
            assert_eq!(configuration.settings.default_permissions.map(Mode::bits), expected.permissions, "{line:?}");
            assert_eq!(configuration.settings.default_on_delete, expected.on_delete, "{line:?}");
            assert_eq!(configuration.working_mount_dir.to_str(), Some(expected.working_dir), "{line:?}");
            assert_eq!(configuration.node.stats_cache, Duration::from_secs(expected.stats_cache), "{line:?}");
            assert_eq!(configuration.log_level, expected.level, "{line:?}");
        }
    }

    #[test]
    fn the_command_lines_of_csi_driver_nfs_s_manifests_and_documents_work_as_they_are() {
        are_read(&[
            // deploy/csi-nfs-controller.yaml and csi-nfs-node.yaml, 3.0 to 4.13.
            (&["-v=5", "--nodeid=worker-1", "--endpoint=unix:///csi/csi.sock"], PLAIN),
            // The chart's node plugin of 2.0.
            (
                &["-v=5", "--nodeid=worker-1", "--endpoint=unix://plugin/csi.sock"],
                Read { endpoint: "/plugin/csi.sock", ..PLAIN },
            ),
            // The chart's controller of 3.1 and 4.0: mountPermissions is 0777 in its values, a number of YAML.
            (
                &[
                    "--v=5",
                    "--nodeid=worker-1",
                    "--endpoint=unix:///csi/csi.sock",
                    "--drivername=nfs.csi.k8s.io",
                    "--mount-permissions=511",
                    "--working-mount-dir=/tmp",
                ],
                Read {
                    permissions: Some(0o777),
                    remarks: &["511 is decimal, as for csi-driver-nfs: mode 0777"],
                    ..PLAIN
                },
            ),
            // 4.5, with another name and policy.
            (
                &[
                    "--v=2",
                    "--nodeid=worker-1",
                    "--endpoint=unix:///csi/csi.sock",
                    "--drivername=nfs2.csi.k8s.io",
                    "--mount-permissions=0",
                    "--working-mount-dir=/work",
                    "--default-ondelete-policy=retain",
                ],
                Read { driver: "nfs2.csi.k8s.io", on_delete: OnDelete::Retain, working_dir: "/work", ..PLAIN },
            ),
            // 4.13.
            (
                &[
                    "--v=8",
                    "--nodeid=worker-1",
                    "--endpoint=unix:///csi/csi.sock",
                    "--drivername=nfs.csi.k8s.io",
                    "--mount-permissions=0750",
                    "--working-mount-dir=/tmp",
                    "--default-ondelete-policy=",
                    "--use-tar-command-in-snapshot=false",
                    "--enable-snapshot-compression=true",
                ],
                Read {
                    permissions: Some(0o750),
                    level: Level::DEBUG,
                    remarks: &["without effect here: --enable-snapshot-compression, --use-tar-command-in-snapshot"],
                    ..PLAIN
                },
            ),
            // docs/csi-dev.md and test/sanity/run-test.sh.
            (
                &["--endpoint", "unix:///tmp/csi.sock", "--nodeid", "CSINode", "-v=5"],
                Read { endpoint: "/tmp/csi.sock", node: "CSINode", ..PLAIN },
            ),
        ]);
    }

    #[test]
    fn flags_are_spelled_and_ended_as_in_go_and_mixed_with_this_driver_s_own() {
        are_read(&[
            // Nothing: all defaults.
            (&[], Read { endpoint: "/tmp/csi.sock", node: "", remarks: &["node id is empty"], ..PLAIN }),
            (&["--nodeid=worker-1"], Read { endpoint: "/tmp/csi.sock", ..PLAIN }),
            // All that is left, in the other spellings.
            (
                &[
                    "-nodeid",
                    "worker-1",
                    "-endpoint=unix://csi/csi.sock",
                    "-v",
                    "10",
                    "-vol-stats-cache-expire-in-minutes=3",
                    "-remove-archived-volume-path",
                    "-logtostderr",
                    "-stderrthreshold",
                    "2",
                    "--vmodule=a=1,b=2",
                    "--logtostderr=T",
                ],
                Read {
                    stats_cache: 180,
                    level: Level::TRACE,
                    remarks: &["here: --logtostderr, --remove-archived-volume-path, --stderrthreshold, --vmodule"],
                    ..PLAIN
                },
            ),
            // Go reads nothing behind the first word that is no flag, such as a boolean's value without its sign.
            (
                &["--nodeid=worker-1", "--logtostderr", "false", "--endpoint=unix:///csi/csi.sock"],
                Read { endpoint: "/tmp/csi.sock", remarks: &["\"false\"", "--logtostderr"], ..PLAIN },
            ),
            // With this driver's own flags.
            (
                &["--node-id=worker-1", "-v=1", "--log-level=trace", "-endpoint", "unix:///csi/csi.sock"],
                Read { level: Level::TRACE, ..PLAIN },
            ),
        ]);
    }

    #[test]
    fn permissions_are_a_number_of_go_and_one_that_may_be_meant_as_octal_is_refused() {
        let read = |text: &str| parsed(&["--nodeid=n", "--mount-permissions", text]);
        for (text, bits, is_remarked) in [
            ("511", 0o777, true),
            ("493", 0o755, true),
            ("0777", 0o777, false),
            ("0o770", 0o770, false),
            ("0x1ff", 0o777, false),
            ("0X1FF", 0o777, false),
            ("0b111000000", 0o700, false),
            ("7", 0o7, false),
            ("1528", 0o2770, true),
        ] {
            let configuration = read(text).unwrap();
            assert_eq!(configuration.settings.default_permissions.map(Mode::bits), Some(bits), "{text}");
            assert_eq!(!configuration.remarks.is_empty(), is_remarked, "{text}");
        }
        assert_eq!(read("0").unwrap().settings.default_permissions, None);
        for text in ["777", "755", "1777", "7777"] {
            let line = read(text).unwrap_err();
            assert!(
                line.contains(text) && line.contains("octal") || line.contains(&format!("write 0{text}")),
                "{line}"
            );
        }
        for text in ["", "0888", "+7", "-1", "0x", "010000", "seven", "99999999999999999999"] {
            assert!(read(text).unwrap_err().contains("--mount-permissions"), "{text}");
        }
    }

    #[test]
    fn with_a_command_permissions_are_octal_and_one_that_may_be_meant_as_decimal_is_remarked_on() {
        for (text, bits, is_remarked) in [("755", 0o755, false), ("0511", 0o511, false), ("511", 0o511, true)] {
            let configuration = parsed(&["controller", "--mount-permissions", text]).unwrap();
            assert_eq!(configuration.settings.default_permissions.map(Mode::bits), Some(bits), "{text}");
            assert_eq!(configuration.remarks.len(), usize::from(is_remarked), "{text}");
        }
    }

    #[test]
    fn the_verbosity_is_a_log_level() {
        for (number, level) in [
            ("-1", Level::WARN),
            ("0", Level::WARN),
            ("2", Level::INFO),
            ("5", Level::INFO),
            ("6", Level::DEBUG),
            ("10", Level::TRACE),
        ] {
            assert_eq!(parsed(&["-v", number]).unwrap().log_level, level, "{number}");
        }
    }

    #[test]
    fn the_cache_of_statistics_has_ten_minutes_where_it_is_given_none() {
        for (minutes, seconds) in [("1", 60), ("10", 600), ("0", 600), ("-5", 600), ("0x10", 960)] {
            let configuration = parsed(&["--nodeid=n", "--vol-stats-cache-expire-in-minutes", minutes]).unwrap();
            assert_eq!(configuration.node.stats_cache, Duration::from_secs(seconds), "{minutes}");
        }
    }

    #[test]
    fn what_is_wrong_with_it_is_one_line_that_names_it() {
        let cases: [(&[&str], &str); 14] = [
            (&["--bogus=1"], "--bogus"),
            (&["-bogus"], "--bogus"),
            (&["---nodeid=n"], "---nodeid"),
            (&["--=x"], "--=x"),
            (&["--nodeid"], "--nodeid"),
            (&["-v"], "--v"),
            (&["-v=five"], "five"),
            (&["--logtostderr=yes"], "--logtostderr=yes"),
            (&["--vol-stats-cache-expire-in-minutes=ten"], "ten"),
            (&["--vol-stats-cache-expire-in-minutes="], "--vol-stats-cache-expire-in-minutes"),
            (&["--default-ondelete-policy=burn"], "burn"),
            (&["--endpoint=unix://"], "unix://"),
            (&["--endpoint=http://x"], "http://x"),
            // Its flags would be ignored.
            (&["--nodeid=n", "controller", "--endpoint=unix:///csi/csi.sock"], "controller"),
        ];
        for (line, named) in cases {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(named) && !error.contains('\n') && error.len() < 400, "{error}");
        }
    }

    #[test]
    fn help_and_the_version_are_given_as_ever() {
        for (line, part) in [
            (["nfs-csi", "--help"], "controller"),
            (["nfs-csi", "-h"], "controller"),
            (["nfs-csi", "-help"], "--node-id"),
            (["nfs-csi", "--version"], env!("CARGO_PKG_VERSION")),
        ] {
            let answer = parse(line.map(OsString::from)).unwrap_err();
            let text = answer.0.render().to_string();
            assert!(text.contains(part) && !text.contains("nodeid"), "{text}");
        }
    }
}

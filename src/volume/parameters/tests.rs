use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// A map with a server and a share, and more.
fn with(more: &[(&str, &str)]) -> HashMap<String, String> {
    let mut all = map(&[("server", "nas"), ("share", "/export")]);
    all.extend(map(more));
    all
}

fn created(more: &[(&str, &str)]) -> CreateParameters {
    CreateParameters::parse(&with(more)).unwrap()
}

fn refused(more: &[(&str, &str)]) -> ParameterError {
    CreateParameters::parse(&with(more)).unwrap_err()
}

fn published(more: &[(&str, &str)]) -> PublishParameters {
    PublishParameters::parse(&with(more)).unwrap()
}

fn publish_refused(pairs: &[(&str, &str)]) -> ParameterError {
    PublishParameters::parse(&map(pairs)).unwrap_err()
}

#[test]
fn a_storage_class_needs_server_and_share_only() {
    let parameters = created(&[]);
    assert_eq!(parameters.share.to_string(), "nas:/export");
    assert_eq!((parameters.template, parameters.on_delete, parameters.permissions), (None, None, None));
    assert_eq!((parameters.owner, parameters.metadata), (Owner::default(), Metadata::default()));
}

#[test]
fn a_storage_class_is_read_whole_with_keys_in_any_case() {
    let parameters = created(&[
        ("SUBDIR", "${pvc.metadata.namespace}/${pvc.metadata.name}-${pv.metadata.name}"),
        ("ondelete", "Retain"),
        ("MountPermissions", "0770"),
        ("uid", "1000"),
        ("GID", "0"),
        ("mode", "770"),
        ("csi.storage.k8s.io/pvc/name", "data"),
        ("csi.storage.k8s.io/PVC/namespace", "team"),
        ("csi.storage.k8s.io/pv/name", "pvc-1"),
        ("csi.storage.k8s.io/provisioner-secret-name", "ignored"),
        ("CSI.storage.k8s.io/fstype", "nfs"),
    ]);
    let subdir = parameters.template.unwrap().render(&parameters.metadata).unwrap();
    assert_eq!(subdir.as_str(), "team/data-pvc-1");
    assert_eq!(parameters.on_delete, Some(OnDelete::Retain));
    assert_eq!(parameters.permissions.map(Mode::bits), Some(0o770));
    assert_eq!(parameters.owner, Owner { uid: Some(1000), gid: Some(0) });
}

#[test]
fn optional_parameters_without_a_value_are_as_good_as_none() {
    let keys = ["subDir", "onDelete", "mountPermissions", "mode", "uid", "gid", "csi.storage.k8s.io/pvc/name"];
    assert_eq!(created(&keys.map(|key| (key, ""))), created(&[]));
    assert_eq!(created(&[("mountPermissions", "0"), ("mode", "0")]).permissions, None);
    assert_eq!(created(&[("mountPermissions", "0"), ("mode", "0750")]).permissions, Mode::from_bits(0o750));
    assert_eq!(created(&[("mountPermissions", "0750"), ("mode", "")]).permissions, Mode::from_bits(0o750));
}

#[test]
fn a_parameter_that_is_missing_or_empty_is_named() {
    let parse = |pairs: &[(&str, &str)]| CreateParameters::parse(&map(pairs)).unwrap_err();
    assert_eq!(parse(&[]), ParameterError::Missing { key: "server" });
    assert_eq!(parse(&[("server", "nas")]), ParameterError::Incomplete { has: "server", lacks: "share" });
    assert_eq!(parse(&[("share", "/x")]), ParameterError::Incomplete { has: "share", lacks: "server" });
    assert_eq!(refused(&[("server", "")]), ParameterError::Empty { key: "server" });
    assert_eq!(refused(&[("share", "")]), ParameterError::Empty { key: "share" });
}

#[test]
fn an_unknown_parameter_is_named_with_the_known_ones() {
    for key in ["sub-dir", "", "subDir ", "example.com/x", "csi.storage.k8s.io", "mountOptions"] {
        let error = refused(&[(key, "x")]);
        assert!(matches!(&error, ParameterError::Unknown { key: named, .. } if *named == quote(key)), "{error}");
        assert!(CREATE_KEYS.iter().all(|known| error.to_string().contains(known)), "{error}");
    }
    // The same mistakes give the same message every time.
    let first = refused(&[("x", ""), ("y", ""), ("z", "")]);
    assert!((0..20).all(|_| refused(&[("x", ""), ("y", ""), ("z", "")]) == first));
}

#[test]
fn one_parameter_in_two_spellings_is_refused() {
    let twice = |first: &str, second: &str| ParameterError::Twice { first: quote(first), second: quote(second) };
    assert_eq!(refused(&[("Server", "nas")]), twice("Server", "server"));
    assert_eq!(refused(&[("subDir", "a"), ("subdir", "a")]), twice("subDir", "subdir"));
    assert_eq!(refused(&[("UID", ""), ("uid", "")]), twice("UID", "uid"));
}

#[test]
fn a_value_that_is_wrong_is_named_with_its_key() {
    let cases = [
        (("server", "a b"), "\"a b\""),
        (("share", "/a/../b"), "share: \"/a/../b\""),
        (("subDir", "${node.name}"), "subDir: the variable \"${node.name}\""),
        (("onDelete", "burn"), "onDelete: \"burn\""),
        (("mountPermissions", "0999"), "mountPermissions: \"0999\""),
        (("mode", "77777"), "mode: \"77777\""),
        (("uid", "root"), "uid: \"root\""),
        (("uid", "+1"), "uid: \"+1\""),
        (("gid", "-1"), "gid: \"-1\""),
        (("gid", "4294967295"), "gid: \"4294967295\""),
        (("gid", " 1"), "gid: \" 1\""),
    ];
    for ((key, value), named) in cases {
        let mut parameters = with(&[]);
        parameters.insert(key.into(), value.into());
        let message = CreateParameters::parse(&parameters).unwrap_err().to_string();
        assert!(message.contains(named), "{message}");
    }
    let modes = refused(&[("mode", "0750"), ("mountPermissions", "0755")]);
    assert_eq!(modes.to_string(), "mode is 0750 and mountPermissions is 0755: they mean the same, keep one");
    assert_eq!(created(&[("uid", "4294967294")]).owner.uid, Some(u32::MAX - 1));
}

#[test]
fn capacity_is_asked_of_one_share_or_of_all() {
    assert_eq!(capacity_of(&map(&[])), Ok((None, None)));
    let capacity = capacity_of(&with(&[("onDelete", "retain"), ("csi.storage.k8s.io/fstype", "x")]));
    assert_eq!(capacity, Ok(("nas:/export".parse().ok(), None)));
    let bound = capacity_of(&with(&[("quota", "required"), ("overcommit", "1.5")])).unwrap().1;
    assert_eq!(bound, Overcommit::parse("1.5").ok());
    assert!(matches!(capacity_of(&with(&[("sub-dir", "")])), Err(ParameterError::Unknown { .. })));
    assert!(matches!(capacity_of(&map(&[("server", "nas")])), Err(ParameterError::Incomplete { .. })));
}

#[test]
fn a_volume_of_ours_is_published_with_what_its_storage_class_says() {
    let parameters = published(&[
        ("subdir", "/team/data/"),
        ("mountOptions", "nfsvers=4.1,hard"),
        ("mountPermissions", "0750"),
        ("onDelete", "whatever"),
        ("uid", "whatever"),
        ("gid", "whatever"),
        ("mode", "whatever"),
        ("csi.storage.k8s.io/pvc/name", "data"),
        ("storage.kubernetes.io/csiProvisionerIdentity", "1700000000000-8081-nfs.csi.k8s.io"),
        ("csi.storage.k8s.io/ephemeral", "false"),
        ("csi.storage.k8s.io/pod.name", "web-0"),
    ]);
    assert_eq!(parameters.share.unwrap().to_string(), "nas:/export");
    assert_eq!(parameters.subdir.unwrap().as_str(), "team/data");
    assert_eq!(parameters.mount_options.as_deref(), Some("nfsvers=4.1,hard"));
    assert_eq!(parameters.permissions, Mode::from_bits(0o750));
    assert!(!parameters.ephemeral);
}

#[test]
fn a_static_volume_s_subdir_may_be_a_template_and_none_means_the_share() {
    let metadata = [("csi.storage.k8s.io/pvc/name", "data"), ("subDir", "x/${pvc.metadata.name}")];
    assert_eq!(published(&metadata).subdir.unwrap().as_str(), "x/data");
    for more in [&[][..], &[("subDir", "")], &[("subDir", "/")]] {
        assert_eq!(published(more).subdir, None);
    }
    for path in ["../x", "a//b", ".nfs-csi", "a/${pv.metadata.name}", "${"] {
        let error = publish_refused(&[("server", "nas"), ("share", "/x"), ("subDir", path)]);
        assert!(matches!(error, ParameterError::SubDir(_)), "{error}");
    }
}

#[test]
fn attributes_without_server_and_share_leave_the_place_to_the_id() {
    assert_eq!(PublishParameters::parse(&map(&[("mountPermissions", "0")])).unwrap().share, None);
    let incomplete = |has, lacks| ParameterError::Incomplete { has, lacks };
    assert_eq!(publish_refused(&[("server", "nas")]), incomplete("server", "share"));
    assert_eq!(publish_refused(&[("share", "/x")]), incomplete("share", "server"));
    assert_eq!(publish_refused(&[("subDir", "x")]), incomplete("subDir", "server"));
    assert_eq!(publish_refused(&[("server", ""), ("share", "")]), ParameterError::Empty { key: "server" });
}

#[test]
fn unknown_attributes_of_a_volume_are_reported_without_their_values_and_those_of_others_are_not() {
    let parameters = published(&[
        ("sub-dir", "hunter2"),
        ("subDirectory", "hunter2"),
        ("two\nlines", ""),
        ("csi.storage.k8s.io/serviceAccount.tokens", "hunter2"),
        ("CSI.storage.k8s.io/pod.uid", ""),
        ("storage.kubernetes.io/csiProvisionerIdentity", ""),
        ("example.com/note", ""),
    ]);
    assert_eq!(parameters.unknown, ["\"sub-dir\"", "\"subDirectory\"", "\"two\\nlines\""]);
    assert_eq!(PublishParameters { unknown: Vec::new(), ..parameters }, published(&[]));
}

#[test]
fn one_attribute_in_two_spellings_is_refused() {
    let error = publish_refused(&[("subDir", "x"), ("SUBDIR", "y")]);
    assert!(matches!(error, ParameterError::Twice { .. }), "{error}");
}

#[test]
fn whether_a_volume_is_inline_is_true_or_false() {
    assert!(published(&[("csi.storage.k8s.io/ephemeral", "True")]).ephemeral);
    assert!(published(&[("inlinescratch", "true")]).inline_scratch && !published(&[]).inline_scratch);
    let error = publish_refused(&[("csi.storage.k8s.io/ephemeral", "maybe")]);
    assert_eq!(error.to_string(), "csi.storage.k8s.io/ephemeral: \"maybe\" is neither true nor false");
}

#[test]
fn a_secret_tells_its_mount_options_and_shows_none() {
    let secrets = Secrets::parse(&map(&[("MOUNTOPTIONS", "sec=krb5"), ("password", "hunter2")])).unwrap();
    assert_eq!(secrets.mount_options.as_deref(), Some("sec=krb5"));
    assert_eq!(format!("{secrets:?}"), "Secrets { .. }");
    assert_eq!(Secrets::parse(&map(&[("mountOptions", "")])), Ok(Secrets::default()));
    let twice = Secrets::parse(&map(&[("mountOptions", "sec=krb5"), ("mountoptions", "hunter2")])).unwrap_err();
    assert!(!format!("{twice} {twice:?}").contains("krb5") && !twice.to_string().contains("hunter2"));
}

#[test]
fn the_driver_s_own_folder_is_no_share_and_in_no_share() {
    for path in ["/.nfs-csi", "/export/.nfs-csi/trash"] {
        let error = CreateParameters::parse(&map(&[("server", "nas"), ("share", path)])).unwrap_err();
        assert!(matches!(error, ParameterError::Share(PathError::Reserved { .. })), "{error}");
    }
}

#[test]
fn limits_are_said_by_the_class_and_a_volume_attributes_class_goes_before_it() {
    let parse = |more: &[(&str, &str)]| CreateParameters::parse(&with(more)).map(|parameters| parameters.quota);
    assert_eq!(parse(&[]), Ok(QuotaPolicy::default()));
    let all = [("quota", "Preferred"), ("inodesPerGiB", "1000"), ("rootExempt", "true"), ("overcommit", "2")];
    let policy = QuotaPolicy {
        mode: QuotaMode::Preferred,
        inodes_per_gib: NonZeroU64::new(1000),
        root_exempt: true,
        overcommit: Overcommit::parse("2").ok(),
    };
    assert_eq!(parse(&all), Ok(policy));
    for (key, value) in [("quota", "yes"), ("inodesPerGiB", "0"), ("inodesPerGiB", "+1"), ("overcommit", "x")] {
        let message = parse(&[("quota", "required"), (key, value)]).map(drop);
        let message = match (key, message) {
            // Given twice here.
            ("quota", _) => parse(&[(key, value)]).unwrap_err(),
            (_, message) => message.unwrap_err(),
        };
        assert!(message.to_string().starts_with(&format!("{key}: ")), "{message}");
    }
    assert!(matches!(parse(&[("overcommit", "2")]), Err(ParameterError::WithoutQuota { .. })));

    let mutable = MutableParameters::parse(&map(&[("quota", "required"), ("ondelete", "retain")])).unwrap();
    let changed = CreateParameters::parse(&with(&all)).unwrap().changed(&mutable);
    assert_eq!(changed.quota, QuotaPolicy { mode: QuotaMode::Required, ..policy });
    assert_eq!((changed.on_delete, changed.trash_retention), (Some(OnDelete::Retain), None));
    let error = MutableParameters::parse(&map(&[("server", "nas")])).unwrap_err().to_string();
    assert!(error.contains("onDelete, trashRetention, quota, inodesPerGiB"), "{error}");
}

proptest! {
    #[test]
    fn no_map_makes_the_parsers_panic(
        map in proptest::collection::hash_map(
            "(?i)server|share|subdir|ondelete|mode|uid|mountpermissions|csi\\.storage\\.k8s\\.io/pv/name|\\PC{0,9}",
            "\\PC{0,9}|[0-9./${}a]{0,9}|retain",
            0..6,
        ),
    ) {
        let _ = (CreateParameters::parse(&map), PublishParameters::parse(&map), capacity_of(&map));
        let _ = Secrets::parse(&map);
    }
}

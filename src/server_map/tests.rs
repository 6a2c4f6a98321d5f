use std::os::unix::fs::symlink;
use std::path::Path;

use super::file::MapError;
use super::*;

const ID: &str = "0123456789abcdef0123456789abcdef";

fn parse(text: &str) -> Result<ServerMap, MapError> {
    let entries = Entries::parse(Path::new("servers.json"), text.as_bytes())?;
    Ok(ServerMap { current: RwLock::new(Arc::new(entries)), ..ServerMap::default() })
}

fn moved() -> ServerMap {
    parse(&format!(
        r#"{{"servers": {{
            "nas1": {{"address": ["nfs-a.example.com", "10.1.0.5"], "was": ["10.0.0.5", "Old-NAS", "fd00:0::1"],
                      "mountOptions": ["nfsvers=4.2", "port=2050"], "exports": {{"/export": {{"id": "{ID}"}}}}}},
            "nas2": {{"address": "10.0.0.5"}},
            "nas3": {{}}}}}}"#
    ))
    .unwrap()
}

fn share(text: &str) -> Share {
    text.parse().unwrap()
}

#[test]
fn a_server_is_known_by_all_its_names_however_they_are_written() {
    let map = moved();
    for name in ["nas1", "NAS1", "nas1.", "10.0.0.5", "old-nas", "fd00::1", "fd00:0:0::1"] {
        assert_eq!(map.addresses(name), ["nfs-a.example.com", "10.1.0.5"], "{name}");
        assert_eq!(
            map.canonical(&Share::new(Server::parse(name).unwrap(), share("x:/a").path().clone())).to_string(),
            "nas1:/a"
        );
    }
    assert_eq!(map.names("old-nas"), ["10.0.0.5", "fd00::1", "nas1", "old-nas"]);
    // Two servers can change places: an address is not looked up again.
    assert_eq!(map.addresses("nas2"), ["10.0.0.5"]);
    assert_eq!(map.addresses("nas3"), ["nas3"]);
    assert_eq!(map.addresses("other"), ["other"]);
    assert_eq!(map.canonical(&share("other:/a")), share("other:/a"));
    assert!(map.names("other").is_empty());
}

#[test]
fn its_options_win_over_those_of_a_volume() {
    let map = moved();
    let options = Options::parse(["nfsvers=3,hard"]).unwrap();
    let both = Options::parse(["nfsvers=4.2,port=2050,hard"]).unwrap();
    assert_eq!(map.options_over(options.clone(), "10.0.0.5"), both);
    assert_eq!(map.options_over(options.clone(), "other"), options);
}

#[test]
fn an_export_has_the_id_that_the_map_says() {
    let map = moved();
    let id = |path: &str| map.find("old-nas").unwrap().export_id(share(path).path()).map(ToString::to_string);
    assert_eq!(id("x:/export/").as_deref(), Some(ID));
    assert_eq!(id("x:/other"), None);
}

#[test]
fn a_server_is_another_to_the_pool_when_anything_changes_that_is_said_of_it() {
    let state = |text: &str| parse(text).unwrap().find("a");
    let one = state(r#"{"servers": {"a": {"address": "b"}, "x": {}}}"#);
    assert_eq!(one, state(r#"{"servers": {"a": {"address": ["b"]}, "y": {}}}"#));
    for other in [
        r#"{"servers": {"a": {}}}"#,
        r#"{"servers": {"a": {"address": "c"}}}"#,
        r#"{"servers": {"a": {"address": "b", "mountOptions": ["port=1"]}}}"#,
        r#"{"servers": {}}"#,
    ] {
        assert_ne!(one, state(other), "{other}");
    }
    assert_eq!(state(r#"{"servers": {}}"#), None);
}

#[test]
fn what_is_wrong_is_refused_and_named() {
    let cases = [
        ("", "not JSON"),
        ("[]", "not JSON"),
        (r#"{"server": {}}"#, "server"),
        (r#"{"servers": {"a": {"adress": "b"}}}"#, "adress"),
        (r#"{"servers": {"a": {"address": 5}}}"#, "address is a text or a list of texts"),
        (r#"{"servers": {"a": {"address": []}}}"#, "the list of addresses of \"a\" is empty"),
        (r#"{"servers": {"a": {"address": "b/c"}}}"#, "the address of \"a\": \"b/c\""),
        (r#"{"servers": {"a b": {}}}"#, "\"a b\" names no server"),
        (r#"{"servers": {"a": {"was": ["-x"]}}}"#, "was of \"a\": \"-x\""),
        (r#"{"servers": {"a": {"was": ["b"]}, "c": {"was": ["B."]}}}"#, "\"b\" stands twice"),
        (r#"{"servers": {"a": {"was": ["c"]}, "c": {}}}"#, "\"c\" stands twice"),
        (r#"{"servers": {"a": {"mountOptions": ["addr=1"]}}}"#, "the mountOptions of \"a\""),
        (r#"{"servers": {"a": {"exports": {"/x": {"id": "1"}}}}}"#, "32 hexadecimal digits"),
        (
            r#"{"servers": {"a": {"exports": {"/../x": {"id": "0123456789abcdef0123456789abcdef"}}}}}"#,
            "an export of \"a\"",
        ),
    ];
    for (text, named) in cases {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains("servers.json") && error.contains(named), "{text}: {error}");
    }
}

/// What the map says of "a", as soon as it is this.
async fn says(map: &ServerMap, address: &str) {
    while map.addresses("a") != [address] {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_file_is_read_again_when_it_changes_as_the_kubelet_changes_it_and_a_wrong_one_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("servers.json");
    let map = ServerMap::open(&file).unwrap();
    map.follow();
    // The kubelet replaces a link to a folder with all files of the ConfigMap.
    let put = |version: &str, text: &str| {
        let version = folder.path().join(version);
        std::fs::create_dir(&version).unwrap();
        std::fs::write(version.join("servers.json"), text).unwrap();
        let new = folder.path().join("new");
        symlink(&version, &new).unwrap();
        std::fs::rename(&new, folder.path().join("..data")).unwrap();
    };
    let of = |address: &str| format!(r#"{{"servers": {{"a": {{"address": "{address}"}}}}}}"#);
    put("1", &of("b"));
    symlink("..data/servers.json", &file).unwrap();
    says(&map, "b").await;
    put("2", &of("c"));
    says(&map, "c").await;
    put("3", "{");
    while !map.is_refused() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    says(&map, "c").await;
    put("4", &of("d"));
    says(&map, "d").await;
    assert!(!map.is_refused());
    std::fs::remove_file(&file).unwrap();
    while !map.is_refused() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    says(&map, "d").await;
}

#[test]
fn a_file_that_is_wrong_at_the_start_is_an_error_and_one_that_is_not_there_is_empty() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("servers.json");
    assert_eq!(ServerMap::open(&file).unwrap().addresses("a"), ["a"]);
    std::fs::write(&file, "{").unwrap();
    ServerMap::open(&file).unwrap_err();
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    ServerMap::open(&file).unwrap_err();
}

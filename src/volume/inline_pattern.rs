//! Which inline volumes a node takes. A pod's author chooses server and path of such a volume, so the operator says
//! where it may be: `server:/path`, that directory and all below it, or `*:/path` on any server.

use std::fmt;
use std::str::FromStr;

use super::share::{Server, Share, ShareError, SharePath};
use super::subdir::SubDir;

const ANY: &str = "*:";

/// What the kubelet's ids of inline volumes begin with, and how many digits of a SHA-256 follow.
const ID: &str = "csi-";
const ID_DIGITS: usize = 64;

/// Whether the kubelet gave this volume id, which it does for inline volumes only.
///
/// It also marks them in their context, but only where the `CSIDriver` object has `podInfoOnMount`; without, the
/// context is all the pod author's, who must not be believed.
#[must_use]
pub fn is_inline_id(id: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    id.strip_prefix(ID).is_some_and(|digits| digits.len() == ID_DIGITS && digits.bytes().all(is_digit))
}

/// A place in which inline volumes may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlinePattern {
    /// None: any.
    server: Option<Server>,
    path: SharePath,
}

impl FromStr for InlinePattern {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Self, ShareError> {
        match text.strip_prefix(ANY) {
            Some(path) if path.starts_with('/') => Ok(Self { server: None, path: SharePath::parse(path)? }),
            // What is wrong with it is the same as without a server.
            _ => Share::parse(text)
                .map(|share| Self { server: Some(share.server().clone()), path: share.path().clone() }),
        }
    }
}

impl fmt::Display for InlinePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.server {
            Some(server) => write!(f, "{}:{}", server.bracketed(), self.path),
            None => write!(f, "{ANY}{}", self.path),
        }
    }
}

impl InlinePattern {
    /// The same directory, told from this place on: the path that the operator wrote is the share, what the pod's
    /// author added is below it, where no link is followed. None if the directory is not in this place.
    #[must_use]
    pub fn locate(&self, share: &Share, subdir: Option<&SubDir>) -> Option<(Share, Option<SubDir>)> {
        let same_server = |server: &Server| server.as_str().eq_ignore_ascii_case(share.server().as_str());
        if !self.server.as_ref().is_none_or(same_server) {
            return None;
        }
        let below_share = subdir.into_iter().flat_map(SubDir::components);
        let mut path = components(share.path()).chain(below_share);
        if !components(&self.path).all(|component| path.next() == Some(component)) {
            return None;
        }
        let rest: Vec<&str> = path.collect();
        let rest = match rest.as_slice() {
            [] => None,
            // Neither part has what makes it no path; together they may be too long for one.
            rest => Some(SubDir::parse(&rest.join("/")).ok()?),
        };
        Some((Share::new(share.server().clone(), self.path.clone()), rest))
    }

    /// How many components the operator wrote.
    #[must_use]
    pub fn depth(&self) -> usize {
        components(&self.path).count()
    }
}

fn components(path: &SharePath) -> impl Iterator<Item = &str> {
    path.as_str().split('/').filter(|component| !component.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> InlinePattern {
        text.parse().unwrap()
    }

    /// The share and the directory that a volume is located at.
    fn located(text: &str, share: &str, subdir: Option<&str>) -> Option<(String, Option<String>)> {
        let subdir = subdir.map(|subdir| SubDir::parse(subdir).unwrap());
        let (share, subdir) = pattern(text).locate(&Share::parse(share).unwrap(), subdir.as_ref())?;
        Some((share.to_string(), subdir.map(|subdir| subdir.to_string())))
    }

    #[test]
    fn a_place_is_a_directory_on_one_server_or_on_any() {
        for text in ["nas:/export/team", "*:/public", "*:/", "[fd00::1]:/x"] {
            assert_eq!(pattern(text).to_string(), text);
        }
        for text in
            ["", "*", "*:", "*:public", "nas", "nas:export", ":/x", "nas:/x/../y", "*:/..", "*:/.nfs-csi", "n*:/x"]
        {
            assert!(text.parse::<InlinePattern>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_kubelet_s_ids_are_known() {
        let id = format!("csi-{}", "0123456789abcdef".repeat(4));
        assert!(is_inline_id(&id));
        for other in
            ["", "csi-", "csi-0123", &id[1..], &id[..67], &id.to_uppercase(), &format!("{id}0"), "nas#share#pvc##"]
        {
            assert!(!is_inline_id(other), "{other}");
        }
    }

    #[test]
    fn whole_components_count_and_what_is_below_the_place_is_told_apart() {
        let at = |share: &str, rest: Option<&str>| Some((share.to_owned(), rest.map(str::to_owned)));
        assert_eq!(located("nas:/a/b", "nas:/a/b", None), at("nas:/a/b", None));
        assert_eq!(located("nas:/a/b", "NAS:/a/b/c", Some("d/e")), at("NAS:/a/b", Some("c/d/e")));
        assert_eq!(located("nas:/a/b", "nas:/a", Some("b/c")), at("nas:/a/b", Some("c")));
        assert_eq!(located("*:/", "other:/a", None), at("other:/", Some("a")));
        for (share, subdir) in
            [("nas:/a", None), ("nas:/a/bc", None), ("nas:/a", Some("bc")), ("nas:/", Some("a")), ("nas2:/a/b", None)]
        {
            assert_eq!(located("nas:/a/b", share, subdir), None, "{share} {subdir:?}");
        }
    }

    #[test]
    fn a_path_that_is_too_long_below_the_place_is_not_in_it() {
        let long = "x/".repeat(400);
        assert_eq!(located("nas:/", &format!("nas:/{long}"), Some(long.trim_end_matches('/'))), None);
    }

    proptest! {
        #[test]
        fn a_located_directory_is_the_one_that_was_asked_for(
            place in "(/[ab]){0,3}", share in "(/[ab]){0,3}", below in "[ab](/[ab]){0,2}",
        ) {
            let share = Share::parse(&format!("nas:/{share}")).unwrap();
            let below = SubDir::parse(&below).unwrap();
            let whole = format!("{}/{below}", share.path().as_str().trim_end_matches('/'));
            let prefix = format!("{}/", place.trim_end_matches('/'));
            match pattern(&format!("nas:/{place}")).locate(&share, Some(&below)) {
                Some((share, rest)) => {
                    let rest = rest.map_or(String::new(), |rest| format!("/{rest}"));
                    prop_assert_eq!(format!("{}{rest}", share.path().as_str().trim_end_matches('/')), whole);
                }
                None => prop_assert!(!(whole + "/").starts_with(&prefix)),
            }
        }
    }
}

//! Directories below a share: the path of one, and the template in a `StorageClass` that tells a volume's.
//!
//! A path here never leads out of the share and never into the driver's own folder, whoever wrote it: users choose the
//! names that a template takes in. Only the driver itself gives volumes a snapshot's tree, which is in that folder.

use std::fmt;

use thiserror::Error;

use super::path::{self, PathError, RESERVED};
use super::quote::quote;
use super::record_key::RecordKey;
use super::shared_tree::{self, SharedTree};

/// A relative path below a share, in the one form that it has: single slashes, no `.` and no `..`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SubDir(String);

impl SubDir {
    /// Reads a path that is in its form already.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        if text.is_empty() {
            return Err(PathError::Empty);
        }
        if text.starts_with('/') {
            return Err(PathError::Absolute { path: quote(text) });
        }
        path::check(text, text.split('/'))?;
        Ok(Self(text.to_owned()))
    }

    /// Reads a path that the driver itself wrote down: also that of a snapshot's tree, which is in the driver's own
    /// folder.
    pub fn recorded(text: &str) -> Result<Self, PathError> {
        if SharedTree::at_path(text).is_some() { Ok(Self(text.to_owned())) } else { Self::parse(text) }
    }

    /// The path of a snapshot's tree that volumes read.
    #[must_use]
    pub fn of_shared_tree(tree: &SharedTree) -> Self {
        Self(format!("{RESERVED}/{}/{}", shared_tree::FOLDER, tree.name()))
    }

    /// The snapshot's tree that the path leads to; none if it leads elsewhere.
    #[must_use]
    pub fn shared_tree(&self) -> Option<SharedTree> {
        SharedTree::at_path(&self.0)
    }

    /// A directory at the top of the share, of a name that is known to be safe.
    pub(super) fn at_top(name: String) -> Self {
        Self(name)
    }

    /// The path.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The names on the way to the directory, its own last; at least one.
    pub fn components(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// The components of the directory that it is in.
    pub fn parents(&self) -> impl Iterator<Item = &str> {
        self.0.rsplit_once('/').into_iter().flat_map(|(parents, _)| parents.split('/'))
    }

    /// The directory's own name.
    #[must_use]
    pub fn file_name(&self) -> &str {
        self.0.rsplit_once('/').map_or(&self.0, |(_, name)| name)
    }

    /// Whether the directory is somewhere inside another.
    #[must_use]
    pub fn is_below(&self, other: &Self) -> bool {
        self.0.strip_prefix(&other.0).is_some_and(|rest| rest.starts_with('/'))
    }

    /// Where the directory goes when its volume is archived: `archived-<path>`, which makes `archived-a/b` of `a/b`.
    /// The first copy has this name, the later ones a number behind it. Where that would be too long, the path's key
    /// stands for the path.
    #[must_use]
    pub fn archived(&self, copy: u32) -> Self {
        let number = if copy == 0 { String::new() } else { format!(".{copy}") };
        Self::parse(&format!("archived-{self}{number}"))
            .unwrap_or_else(|_| Self::at_top(format!("archived-{}{number}", RecordKey::of(&self.0))))
    }
}

impl fmt::Display for SubDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What the provisioner tells of the claim and the volume if it runs with `--extra-create-metadata`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The name of the `PersistentVolumeClaim`.
    pub pvc_name: Option<String>,
    /// Its namespace.
    pub pvc_namespace: Option<String>,
    /// The name of the `PersistentVolume`.
    pub pv_name: Option<String>,
}

impl Metadata {
    /// The claim, `namespace/name`; none where it is not known.
    #[must_use]
    pub fn claim(&self) -> Option<String> {
        Some(format!("{}/{}", self.pvc_namespace.as_ref()?, self.pvc_name.as_ref()?))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Variable {
    PvcName,
    PvcNamespace,
    PvName,
}

impl Variable {
    const ALL: [Self; 3] = [Self::PvcName, Self::PvcNamespace, Self::PvName];

    fn name(self) -> &'static str {
        match self {
            Self::PvcName => "pvc.metadata.name",
            Self::PvcNamespace => "pvc.metadata.namespace",
            Self::PvName => "pv.metadata.name",
        }
    }

    fn value(self, metadata: &Metadata) -> Option<&str> {
        match self {
            Self::PvcName => metadata.pvc_name.as_deref(),
            Self::PvcNamespace => metadata.pvc_namespace.as_deref(),
            Self::PvName => metadata.pv_name.as_deref(),
        }
    }
}

/// The variables that a template may have, as error messages list them.
const KNOWN: &str = "${pvc.metadata.name}, ${pvc.metadata.namespace} and ${pv.metadata.name}";

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Piece {
    Text(String),
    Variable(Variable),
}

/// A path with variables: `${pvc.metadata.name}`, `${pvc.metadata.namespace}`, `${pv.metadata.name}`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Template(Vec<Piece>);

/// Why a template gives no path.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "each variant's message says what its fields are")]
pub enum TemplateError {
    #[error("the variable {variable} is unknown; there are {KNOWN}")]
    Unknown { variable: String },

    #[error("{template} has a \"${{\" without its \"}}\"; the variables are {KNOWN}")]
    Unclosed { template: String },

    #[error(
        "nobody told the value of ${{{variable}}}: run the external provisioner with --extra-create-metadata, or leave \
         the variable out"
    )]
    NoValue { variable: &'static str },

    #[error("${{{variable}}} is {value}, which is no name of a directory (not empty, no '/', no NUL, not '.' or '..')")]
    Value { variable: &'static str, value: String },

    #[error("{path} has a variable again after the first were put in: values must not make \"${{\"")]
    Nested { path: String },

    #[error(transparent)]
    Path(#[from] PathError),
}

impl Template {
    /// Whether who makes a claim has a say in the path: by the claim's name or its namespace's.
    #[must_use]
    pub fn takes_words_of_claims(&self) -> bool {
        let is_claims = |piece: &Piece| matches!(piece, Piece::Variable(Variable::PvcName | Variable::PvcNamespace));
        self.0.iter().any(is_claims)
    }

    /// Reads a template. A `$` without `{` behind it is itself.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once("${") {
            let Some((name, after)) = behind.split_once('}') else {
                return Err(TemplateError::Unclosed { template: quote(text) });
            };
            let Some(variable) = Variable::ALL.into_iter().find(|variable| variable.name() == name) else {
                return Err(TemplateError::Unknown { variable: quote(&format!("${{{name}}}")) });
            };
            pieces.push(Piece::Text(before.to_owned()));
            pieces.push(Piece::Variable(variable));
            rest = after;
        }
        pieces.push(Piece::Text(rest.to_owned()));
        Ok(Self(pieces))
    }

    /// Puts the values in. Slashes around the result are left out; no value adds a component.
    pub fn render(&self, metadata: &Metadata) -> Result<SubDir, TemplateError> {
        let mut path = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => path.push_str(text),
                Piece::Variable(variable) => path.push_str(value(*variable, metadata)?),
            }
        }
        // A node reads the result as a template once more: it must mean itself there.
        if path.contains("${") {
            return Err(TemplateError::Nested { path: quote(&path) });
        }
        Ok(SubDir::parse(path.trim_matches('/'))?)
    }
}

fn value(variable: Variable, metadata: &Metadata) -> Result<&str, TemplateError> {
    let Some(value) = variable.value(metadata) else {
        return Err(TemplateError::NoValue { variable: variable.name() });
    };
    if matches!(value, "" | "." | "..") || value.contains(['/', '\0']) {
        return Err(TemplateError::Value { variable: variable.name(), value: quote(value) });
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::volume::secret::Secret;

    fn subdir(text: &str) -> SubDir {
        SubDir::parse(text).unwrap()
    }

    fn metadata(claim: &str, namespace: &str, volume: &str) -> Metadata {
        Metadata { pvc_name: Some(claim.into()), pvc_namespace: Some(namespace.into()), pv_name: Some(volume.into()) }
    }

    fn rendered(template: &str) -> Result<String, TemplateError> {
        let metadata = metadata("data", "team", "pvc-1");
        Template::parse(template)?.render(&metadata).map(|subdir| subdir.to_string())
    }

    #[test]
    fn a_tree_is_known_by_its_path_and_users_cannot_write_that() {
        let tree = SharedTree::new(RecordKey::of("snap"), Secret::new().unwrap());
        let path = SubDir::of_shared_tree(&tree);
        assert_eq!(path.as_str(), format!(".nfs-csi/shared/{}", tree.name()));
        assert_eq!(path.shared_tree(), Some(tree.clone()));
        assert_eq!(SubDir::recorded(path.as_str()), Ok(path.clone()));
        SubDir::parse(path.as_str()).unwrap_err();
        for other in [".nfs-csi/shared", ".nfs-csi/shared/x", ".nfs-csi/volumes/x", "a/.nfs-csi/shared/x"] {
            SubDir::recorded(other).unwrap_err();
        }
        SubDir::recorded(&format!("{path}/below")).unwrap_err();
        SubDir::recorded(&path.as_str().to_uppercase()).unwrap();
        assert_eq!(SubDir::recorded(&path.as_str().to_uppercase()).unwrap().shared_tree(), None);
    }

    #[test]
    fn a_path_below_the_share_is_taken_as_it_is() {
        for text in ["a", "a/b", "a b/ü", "...", "..a", "a..", "$a", "archived-a", ".nfs-csi2", "a#b", "a\tb"] {
            assert_eq!(subdir(text).as_str(), text);
        }
        assert_eq!(subdir("a/b/c").components().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(subdir("a/b/c").file_name(), "c");
        assert_eq!(subdir("c").file_name(), "c");
    }

    #[test]
    fn what_is_no_path_below_the_share_is_refused_with_its_reason() {
        let refused = |text: &str| SubDir::parse(text).unwrap_err();
        assert_eq!(refused(""), PathError::Empty);
        assert!(matches!(refused("/a"), PathError::Absolute { .. }));
        assert!(matches!(refused("/"), PathError::Absolute { .. }));
        assert!(matches!(refused("a/"), PathError::EmptyComponent { .. }));
        assert!(matches!(refused("a//b"), PathError::EmptyComponent { .. }));
        assert!(matches!(refused("."), PathError::Dot { .. }));
        assert!(matches!(refused("a/./b"), PathError::Dot { .. }));
        assert!(matches!(refused(".."), PathError::DotDot { .. }));
        assert!(matches!(refused("a/.."), PathError::DotDot { .. }));
        assert!(matches!(refused("a\0"), PathError::Nul { .. }));
        assert!(matches!(refused(".nfs-csi"), PathError::Reserved { .. }));
        assert!(matches!(refused(".nfs-csi/volumes"), PathError::Reserved { .. }));
        // Another share may begin below this one, and has its own folder there.
        assert!(matches!(refused("other/share/.nfs-csi/trash"), PathError::Reserved { .. }));
        assert!(matches!(refused(&format!("a/{}", "x".repeat(256))), PathError::LongComponent { length: 256, .. }));
        assert!(matches!(refused(&format!("x{}", "/xxx".repeat(256))), PathError::TooLong { length: 1025, .. }));
        assert_eq!(subdir(&format!("xxx{}", "/xxx".repeat(255))).as_str().len(), 1023);
        assert!(refused(&"x".repeat(4096)).to_string().len() < 300);
    }

    #[test]
    fn an_archived_directory_has_the_name_that_csi_driver_nfs_gives_it_and_a_number_if_it_is_not_the_first() {
        assert_eq!(subdir("pvc-1").archived(0).as_str(), "archived-pvc-1");
        assert_eq!(subdir("a/b").archived(0).as_str(), "archived-a/b");
        assert_eq!(subdir("a/b").archived(12).as_str(), "archived-a/b.12");
    }

    #[test]
    fn an_archived_directory_with_a_long_name_has_its_key_for_a_name() {
        for long in ["x".repeat(250), format!("xxx{}", "/xxx".repeat(255)), format!("a/{}", "x".repeat(255))] {
            let archived = subdir(&long).archived(1);
            assert_eq!(archived.as_str(), format!("archived-{}.1", RecordKey::of(&long)));
        }
    }

    #[test]
    fn variables_become_names_and_outer_slashes_go() {
        let cases = [
            ("fixed/path", "fixed/path"),
            ("${pvc.metadata.namespace}/${pvc.metadata.name}", "team/data"),
            ("/${pvc.metadata.namespace}-${pv.metadata.name}/", "team-pvc-1"),
            ("${pvc.metadata.name}${pv.metadata.name}", "datapvc-1"),
            ("a$b$/$", "a$b$/$"),
            ("$${pv.metadata.name}}", "$pvc-1}"),
            ("{pv.metadata.name}", "{pv.metadata.name}"),
        ];
        for (template, path) in cases {
            assert_eq!(rendered(template).as_deref(), Ok(path));
        }
    }

    #[test]
    fn a_template_that_does_not_resolve_is_refused_and_the_variables_are_listed() {
        for template in
            ["${node.name}", "${PVC.metadata.name}", "${}", "${ pv.metadata.name}", "${a${pv.metadata.name}}"]
        {
            let error = rendered(template).unwrap_err();
            assert!(matches!(error, TemplateError::Unknown { .. }), "{error}");
            assert!(error.to_string().contains(KNOWN), "{error}");
        }
        for template in ["${", "a/${pv.metadata.name", "${pv.metadata.name}${"] {
            let error = rendered(template).unwrap_err();
            assert!(matches!(error, TemplateError::Unclosed { .. }), "{error}");
            assert!(error.to_string().contains(KNOWN), "{error}");
        }
        assert!(Variable::ALL.iter().all(|variable| KNOWN.contains(variable.name())));
    }

    #[test]
    fn a_variable_without_a_value_is_refused_with_the_way_out() {
        let template = Template::parse("a-${pvc.metadata.name}").unwrap();
        let error = template.render(&Metadata::default()).unwrap_err();
        assert_eq!(error, TemplateError::NoValue { variable: "pvc.metadata.name" });
        let message = error.to_string();
        assert!(message.contains("${pvc.metadata.name}") && message.contains("--extra-create-metadata"), "{message}");
    }

    #[test]
    fn a_value_that_is_no_name_is_refused() {
        let template = Template::parse("a-${pvc.metadata.name}").unwrap();
        for value in ["", ".", "..", "a/b", "/", "../x", "a\0b"] {
            let error = template.render(&metadata(value, "team", "pvc-1")).unwrap_err();
            assert_eq!(error, TemplateError::Value { variable: "pvc.metadata.name", value: quote(value) });
        }
        let made_by_values = template.render(&metadata("${pv.metadata.name}", "team", "pvc-1"));
        assert!(matches!(made_by_values, Err(TemplateError::Nested { .. })));
        let top = Template::parse("${pvc.metadata.name}/a").unwrap();
        let reserved = top.render(&metadata(".nfs-csi", "team", "pvc-1"));
        assert!(matches!(reserved, Err(TemplateError::Path(PathError::Reserved { .. }))));
    }

    #[test]
    fn a_path_that_is_wrong_without_any_variable_is_refused_too() {
        for template in ["..", "/../a", "a//b", "/", "", ".nfs-csi/a", "./a"] {
            assert!(matches!(rendered(template), Err(TemplateError::Path(_))), "{template}");
        }
    }

    fn stays_below_the_share(subdir: &SubDir) -> bool {
        !subdir.as_str().starts_with('/')
            && !subdir.as_str().contains('\0')
            && subdir.components().all(|name| !["", ".", "..", RESERVED].contains(&name) && name.len() <= 255)
    }

    const NASTY: &str = "\\PC{0,20}|[a./\\x00${}]{0,12}|\\.nfs-csi(/a)?|\\$\\{p(v|vc)\\.metadata\\.name\\}";

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic_and_what_it_reads_is_read_again_the_same(text in NASTY) {
            if let Ok(subdir) = SubDir::parse(&text) {
                prop_assert!(stays_below_the_share(&subdir));
                prop_assert_eq!(&SubDir::parse(subdir.as_str()).unwrap(), &subdir);
                prop_assert!(stays_below_the_share(&subdir.archived(0)));
                prop_assert!(SubDir::parse(subdir.archived(7).as_str()).is_ok());
                prop_assert_eq!(subdir.components().collect::<Vec<_>>().join("/"), subdir.as_str());
                prop_assert_eq!(subdir.components().last(), Some(subdir.file_name()));
            }
        }

        #[test]
        fn a_rendered_template_stays_below_the_share_and_means_itself(
            before in NASTY, between in NASTY, after in NASTY,
            claim in NASTY, namespace in NASTY, volume in NASTY,
        ) {
            let text = format!("{before}${{pvc.metadata.name}}{between}${{pv.metadata.name}}{after}");
            let metadata = metadata(&claim, &namespace, &volume);
            if let Ok(subdir) = Template::parse(&text).and_then(|template| template.render(&metadata)) {
                prop_assert!(stays_below_the_share(&subdir));
                let again = Template::parse(subdir.as_str()).unwrap();
                prop_assert_eq!(again.render(&Metadata::default()), Ok(subdir));
            }
        }
    }
}

//! The values that users write under keys, read one by one.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::time::Duration;

use super::{
    CREATE_KEYS, INODES_PER_GIB, KUBERNETES, MODE, MOUNT_PERMISSIONS, ON_DELETE, OVERCOMMIT, PV_NAME, PVC_NAME,
    PVC_NAMESPACE, Pair, ParameterError, QUOTA, ROOT_EXEMPT, Result, SERVER, SHARE, SUB_DIR, TRASH_RETENTION,
};
use crate::volume::access::{Mode, OnDelete};
use crate::volume::duration;
use crate::volume::quote::quote;
use crate::volume::share::{Server, Share, SharePath};
use crate::volume::shared_tree::SharedTree;
use crate::volume::size_limit::{Overcommit, QuotaMode, QuotaPolicy};
use crate::volume::subdir::{Metadata, SubDir, Template};

/// The values under known keys, by the key's one spelling.
pub(super) struct Values<'a>(BTreeMap<&'static str, &'a str>);

impl<'a> Values<'a> {
    /// Sorts out keys: `known` ones of the user's and those that `others` send have their values read; the rest is
    /// given too, in order.
    pub(super) fn read(
        pairs: impl IntoIterator<Item = Pair<'a>>,
        known: &[&'static str],
        others: &[&'static str],
    ) -> Result<(Self, Vec<&'a str>)> {
        // In order, so that the same mistake always gives the same message.
        let in_order: BTreeMap<&String, &String> = pairs.into_iter().collect();
        let mut spellings: BTreeMap<&'static str, &str> = BTreeMap::new();
        let mut values = BTreeMap::new();
        let mut rest = Vec::new();
        for (spelling, value) in in_order {
            let Some(key) = known.iter().chain(others).find(|key| key.eq_ignore_ascii_case(spelling)) else {
                rest.push(spelling.as_str());
                continue;
            };
            if let Some(first) = spellings.insert(key, spelling) {
                return Err(ParameterError::Twice { first: quote(first), second: quote(spelling) });
            }
            values.insert(*key, value.as_str());
        }
        Ok((Self(values), rest))
    }

    /// Of the parameters of a class the rest must be Kubernetes'.
    pub(super) fn of_class(
        parameters: impl IntoIterator<Item = Pair<'a>>,
        known: &[&'static str],
        others: &[&'static str],
    ) -> Result<Self> {
        let (values, rest) = Self::read(parameters, known, others)?;
        match rest.into_iter().find(|key| !key.to_ascii_lowercase().starts_with(KUBERNETES)) {
            Some(key) => Err(ParameterError::Unknown { key: quote(key), known: known.join(", ") }),
            None => Ok(values),
        }
    }

    pub(super) fn of_storage_class(parameters: impl IntoIterator<Item = Pair<'a>>) -> Result<Self> {
        Self::of_class(parameters, CREATE_KEYS, &[PVC_NAME, PVC_NAMESPACE, PV_NAME])
    }

    /// The value of an optional key.
    pub(super) fn get(&self, key: &'static str) -> Option<&'a str> {
        self.0.get(key).copied().filter(|value| !value.is_empty())
    }

    pub(super) fn on_delete(&self) -> Result<Option<OnDelete>> {
        self.get(ON_DELETE).map(OnDelete::parse).transpose().map_err(ParameterError::OnDelete)
    }

    pub(super) fn trash_retention(&self) -> Result<Option<Duration>> {
        self.get(TRASH_RETENTION).map(duration::parse).transpose().map_err(ParameterError::TrashRetention)
    }

    pub(super) fn quota(&self) -> Result<QuotaPolicy> {
        let policy = QuotaPolicy {
            mode: self.quota_mode()?.unwrap_or_default(),
            inodes_per_gib: self.inodes_per_gib()?,
            root_exempt: self.truth(ROOT_EXEMPT)?.unwrap_or(false),
            overcommit: self.get(OVERCOMMIT).map(Overcommit::parse).transpose().map_err(ParameterError::Overcommit)?,
        };
        if policy.mode == QuotaMode::None && policy.overcommit.is_some() {
            return Err(ParameterError::WithoutQuota { key: OVERCOMMIT });
        }
        Ok(policy)
    }

    pub(super) fn quota_mode(&self) -> Result<Option<QuotaMode>> {
        self.get(QUOTA).map(QuotaMode::parse).transpose().map_err(ParameterError::Quota)
    }

    pub(super) fn inodes_per_gib(&self) -> Result<Option<NonZeroU64>> {
        let Some(text) = self.get(INODES_PER_GIB) else { return Ok(None) };
        let number = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        match number.and_then(|text| text.parse().ok()) {
            Some(inodes) => Ok(Some(inodes)),
            None => Err(ParameterError::Inodes { value: quote(text) }),
        }
    }

    /// Server and share; none if neither is there.
    pub(super) fn share(&self) -> Result<Option<Share>> {
        let value = |key| match self.0.get(key) {
            Some(&"") => Err(ParameterError::Empty { key }),
            value => Ok(value.copied()),
        };
        match (value(SERVER)?, value(SHARE)?) {
            (Some(server), Some(path)) => {
                let server = Server::parse(server).map_err(ParameterError::Server)?;
                Ok(Some(Share::new(server, SharePath::parse(path).map_err(ParameterError::Share)?)))
            }
            (Some(_), None) => Err(ParameterError::Incomplete { has: SERVER, lacks: SHARE }),
            (None, Some(_)) => Err(ParameterError::Incomplete { has: SHARE, lacks: SERVER }),
            (None, None) => Ok(None),
        }
    }

    pub(super) fn template(&self) -> Result<Option<Template>> {
        self.get(SUB_DIR).map(Template::parse).transpose().map_err(ParameterError::SubDir)
    }

    /// The directory to mount. Slashes alone mean the share itself, as no value does.
    pub(super) fn subdir(&self) -> Result<Option<SubDir>> {
        let Some(path) = self.get(SUB_DIR).filter(|path| !path.trim_matches('/').is_empty()) else { return Ok(None) };
        // The controller gives it to volumes that read a snapshot.
        if let Some(tree) = SharedTree::at_path(path) {
            return Ok(Some(SubDir::of_shared_tree(&tree)));
        }
        let render = |template: Template| template.render(&self.metadata()).map_err(ParameterError::SubDir);
        self.template()?.map(render).transpose()
    }

    pub(super) fn metadata(&self) -> Metadata {
        let value = |key| self.get(key).map(str::to_owned);
        Metadata { pvc_name: value(PVC_NAME), pvc_namespace: value(PVC_NAMESPACE), pv_name: value(PV_NAME) }
    }

    pub(super) fn permissions(&self) -> Result<Option<Mode>> {
        match (self.permission_bits(MODE)?, self.permission_bits(MOUNT_PERMISSIONS)?) {
            (Some(mode), Some(mount_permissions)) if mode != mount_permissions => {
                Err(ParameterError::TwoModes { mode, mount_permissions })
            }
            (mode, mount_permissions) => Ok(mode.or(mount_permissions)),
        }
    }

    /// Permission bits; 0 means that they stay as they are.
    pub(super) fn permission_bits(&self, key: &'static str) -> Result<Option<Mode>> {
        let mode = self.get(key).map(Mode::parse).transpose().map_err(|error| ParameterError::Mode { key, error })?;
        Ok(mode.filter(|mode| mode.bits() != 0))
    }

    /// The number of a user or group. chown(2) takes the highest one for "as it is".
    pub(super) fn owner(&self, key: &'static str) -> Result<Option<u32>> {
        let number = |value: &str| {
            let is_digits = value.bytes().all(|byte| byte.is_ascii_digit());
            let number = value.parse().ok().filter(|&number| is_digits && number != u32::MAX);
            number.ok_or_else(|| ParameterError::Owner { key, value: quote(value) })
        };
        self.get(key).map(number).transpose()
    }

    pub(super) fn truth(&self, key: &'static str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) if value.eq_ignore_ascii_case("true") => Ok(Some(true)),
            Some(value) if value.eq_ignore_ascii_case("false") => Ok(Some(false)),
            Some(value) => Err(ParameterError::Truth { key, value: quote(value) }),
        }
    }

    /// The same with a volume's server or share where only the other one is told.
    pub(super) fn completed_by<'b>(self, volume: &'b Share) -> Values<'b>
    where
        'a: 'b,
    {
        let mut values: BTreeMap<&'static str, &'b str> = self.0;
        if values.contains_key(SERVER) || values.contains_key(SHARE) {
            values.entry(SERVER).or_insert(volume.server().as_str());
            values.entry(SHARE).or_insert(volume.path().as_str());
        }
        Values(values)
    }
}

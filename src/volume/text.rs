//! Values that are text outside the process: on the command line and in records.

/// Gives types that have `Display` and a function to parse it the traits to be read from, and stored as, that text.
macro_rules! text_values {
    ($($value:ty, $parse:ident => $error:ty),* $(,)?) => { $(
        impl std::str::FromStr for $value {
            type Err = $error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::$parse(text)
            }
        }

        impl serde::Serialize for $value {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $value {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::$parse(&text).map_err(serde::de::Error::custom)
            }
        }
    )* };
}

text_values! {
    super::access::Mode, parse => super::access::ModeError,
    super::access::OnDelete, parse => super::access::OnDeleteError,
    super::record_key::RecordKey, parse => super::record_key::KeyError,
    super::share::Share, parse => super::share::ShareError,
    super::secret::Secret, parse => super::secret::SecretError,
    super::subdir::SubDir, recorded => super::path::PathError,
}

#[cfg(test)]
mod tests {
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    use crate::volume::access::{Mode, OnDelete};
    use crate::volume::record_key::RecordKey;
    use crate::volume::share::Share;
    use crate::volume::subdir::SubDir;

    fn is_stored_as<T: Serialize + DeserializeOwned + PartialEq>(text: &str) {
        let json = format!("\"{text}\"");
        let value: T = serde_json::from_str(&json).unwrap();
        assert_eq!(serde_json::to_string(&value).unwrap(), json);
    }

    #[test]
    fn records_hold_values_as_text() {
        is_stored_as::<Mode>("0750");
        is_stored_as::<OnDelete>("archive");
        is_stored_as::<RecordKey>("abcdefghij234567");
        is_stored_as::<Share>("[fd00::1]:/export/a b");
        is_stored_as::<SubDir>("team/data");
    }

    #[test]
    fn a_record_with_a_path_that_climbs_is_not_read() {
        let error = serde_json::from_str::<SubDir>("\"../neighbour\"").unwrap_err();
        assert!(error.to_string().contains(".."), "{error}");
        assert!(serde_json::from_str::<RecordKey>("\"../../etc/passwd\"").is_err());
    }
}

//! Layers as people type them.

/// Which layers: `all`, or a list of numbers and inclusive ranges.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LayerSelection {
    /// Every trunk layer.
    #[default]
    All,
    /// Inclusive ranges.
    Ranges(Vec<(u16, u16)>),
}

/// Which layers a backbone lends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteLayers {
    /// These.
    Chosen(LayerSelection),
    /// Those whose experts its memory does not take.
    Auto,
}

impl Default for RemoteLayers {
    fn default() -> Self {
        Self::Chosen(LayerSelection::All)
    }
}

impl std::str::FromStr for RemoteLayers {
    type Err = RemoteLayersError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse().map(Self::Chosen).map_err(|LayerSelectionError { got }| RemoteLayersError { got })
    }
}

impl<'de> serde::Deserialize<'de> for RemoteLayers {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A text that says not which layers a backbone lends.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected auto, all, a layer such as 0, or ranges such as 0-3,7; got {got:?}")]
pub struct RemoteLayersError {
    got: String,
}

/// A text that selects no layers.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected all, a layer such as 0, or ranges such as 0-3,7; got {got:?}")]
pub struct LayerSelectionError {
    got: String,
}

impl std::str::FromStr for LayerSelection {
    type Err = LayerSelectionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "all" {
            return Ok(Self::All);
        }
        let range = |part: &str| {
            let (a, b) = part.split_once('-').unwrap_or((part, part));
            let (a, b) = (a.trim().parse::<u16>().ok()?, b.trim().parse::<u16>().ok()?);
            (a <= b).then_some((a, b))
        };
        let ranges = text.split(',').map(range).collect::<Option<Vec<_>>>();
        ranges.map(Self::Ranges).ok_or_else(|| LayerSelectionError { got: text.chars().take(64).collect() })
    }
}

impl<'de> serde::Deserialize<'de> for LayerSelection {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl LayerSelection {
    /// The selected layers of a model with `layers` trunk layers; the first one that does not exist is an error.
    ///
    /// # Errors
    /// The layer that the model does not have.
    pub fn resolve(&self, layers: usize) -> Result<Vec<u16>, u16> {
        let Self::Ranges(ranges) = self else { return Ok((0..layers as u16).collect()) };
        let mut chosen: Vec<u16> = ranges.iter().flat_map(|(a, b)| *a..=*b).collect();
        chosen.sort_unstable();
        chosen.dedup();
        match chosen.iter().find(|l| usize::from(**l) >= layers) {
            Some(missing) => Err(*missing),
            None => Ok(chosen),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layer_selections_read_as_the_contract_says() {
        assert_eq!("all".parse(), Ok(LayerSelection::All));
        assert_eq!("0".parse::<LayerSelection>().unwrap().resolve(4), Ok(vec![0]));
        assert_eq!("0-3".parse::<LayerSelection>().unwrap().resolve(4), Ok(vec![0, 1, 2, 3]));
        assert_eq!("3,0-1,1".parse::<LayerSelection>().unwrap().resolve(4), Ok(vec![0, 1, 3]));
        assert_eq!("0-4".parse::<LayerSelection>().unwrap().resolve(4), Err(4));
        assert_eq!("auto".parse(), Ok(RemoteLayers::Auto));
        assert_eq!("0-1".parse(), Ok(RemoteLayers::Chosen(LayerSelection::Ranges(vec![(0, 1)]))));
        assert!("automatic".parse::<RemoteLayers>().unwrap_err().to_string().starts_with("expected auto, all,"));
        for wrong in ["", "x", "auto", "3-1", "1-", "-1", "70000"] {
            assert!(wrong.parse::<LayerSelection>().is_err(), "{wrong:?}");
        }
    }
}

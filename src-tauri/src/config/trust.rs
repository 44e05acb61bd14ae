//! Whom the backbone trusts, and how closely it looks at everybody else.

use serde::Deserialize;

use crate::cli::{AuditSelection, LayerSelection, TrustFlags};
use crate::types::PublicKey;

/// What the backbone is told about workers' honesty.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Trust {
    /// Which answers are recomputed.
    pub audit: Audit,
    /// Layers that only trusted wallets may hold.
    pub trusted_layers: Option<LayerSelection>,
    /// The wallets that are trusted.
    pub trusted_wallets: Vec<PublicKey>,
}

/// `[audit]`: what is not said is the dispatch's default.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Audit {
    /// Everything, before it is used.
    pub before_use: Option<bool>,
    /// A wallet's first assignments, which are always recomputed before use.
    pub first_assignments: Option<u64>,
    /// Until so many assignments a wallet is young.
    pub young_assignments: Option<u64>,
    /// Share of a young wallet's answers that is recomputed after use.
    pub young_rate: Option<f64>,
    /// The same of every other wallet's.
    pub rate: Option<f64>,
}

impl Trust {
    /// What flags and the file say together. A share that is typed is that of every wallet that is past its first work.
    pub(super) fn new(
        flags: &TrustFlags,
        audit: Audit,
        layers: Option<LayerSelection>,
        wallets: Option<Vec<PublicKey>>,
    ) -> Self {
        let audit = match flags.audit {
            Some(AuditSelection::BeforeUse) => Audit { before_use: Some(true), ..audit },
            Some(AuditSelection::Share(share)) => {
                Audit { before_use: Some(false), young_rate: Some(share), rate: Some(share), ..audit }
            }
            None => audit,
        };
        Self {
            audit,
            trusted_layers: flags.trusted_layers.clone().or(layers),
            trusted_wallets: super::list(&flags.trusted_wallets, wallets),
        }
    }
}

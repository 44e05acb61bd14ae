//! What the backbone demands of workers, from what it was told.

use std::path::Path;

use super::{AnyError, usage};
use crate::config::{Audit, Trust};
use crate::dispatch::{AuditPolicy, RATE_MIN, TrustConfig};
use crate::model::Model;

/// The backbone's demands; what wallets have behind them is kept in the `state` directory.
pub(super) fn demands(trust: &Trust, model: &Model, state: &Path) -> Result<TrustConfig, AnyError> {
    let count = model.hyper.layers;
    let trusted_layers = match &trust.trusted_layers {
        Some(layers) => layers
            .resolve(count)
            .map_err(|got| usage(format!("--trusted-layers: expected layers below {count}, got {got}")))?,
        None => Vec::new(),
    };
    if !trusted_layers.is_empty() && trust.trusted_wallets.is_empty() {
        tracing::warn!("layers for trusted wallets only, and no trusted wallet: they stay on the backbone");
    }
    let seniority = state.join("seniority");
    let remembered = TrustConfig::remembered(&seniority);
    let remembered = remembered.map_err(|error| format!("cannot read {}: {error}", seniority.display()))?;
    let trusted_wallets = trust.trusted_wallets.clone();
    Ok(TrustConfig { audit: policy(&trust.audit)?, trusted_layers, trusted_wallets, ..remembered })
}

fn policy(audit: &Audit) -> Result<AuditPolicy, AnyError> {
    let usual = AuditPolicy::default();
    let share = |what: &str, said: Option<f64>, usual: f64| match said.unwrap_or(usual) {
        share if (RATE_MIN..=1.0).contains(&share) => Ok(share),
        got => Err(usage(format!("audit {what}: expected a share from {RATE_MIN} to 1, got {got}"))),
    };
    Ok(AuditPolicy {
        before_use: audit.before_use.unwrap_or(usual.before_use),
        first_assignments: audit.first_assignments.unwrap_or(usual.first_assignments),
        young_assignments: audit.young_assignments.unwrap_or(usual.young_assignments),
        young_rate: share("young_rate", audit.young_rate, usual.young_rate)?,
        rate: share("rate", audit.rate, usual.rate)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_share_is_too_small_to_be_found_out() {
        assert_eq!(policy(&Audit::default()).ok(), Some(AuditPolicy::default()));
        for rate in [0.0, 0.0004, 1.1, f64::NAN, -1.0] {
            let error = policy(&Audit { rate: Some(rate), ..Audit::default() }).unwrap_err().to_string();
            assert!(error.starts_with("audit rate: expected a share from 0.0005 to 1"), "{error}");
        }
        assert_eq!(policy(&Audit { young_rate: Some(1.0), ..Audit::default() }).unwrap().young_rate, 1.0);
    }
}

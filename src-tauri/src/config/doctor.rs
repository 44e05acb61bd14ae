//! What `kvasir doctor` is told: a worker's configuration, of which nothing is required.

use super::site::Typed;
use super::{ConfigError, File, Site};
use crate::cli::DoctorArgs;

impl Site {
    /// What to examine.
    ///
    /// # Errors
    /// A file that cannot be read or has keys that do not belong there, or wishes that make no sense.
    pub fn to_examine(args: &DoctorArgs) -> Result<Self, ConfigError> {
        let mut file = File::read(args.config.as_deref())?.worker;
        let (network, courtesy, gpu) = (&args.network, &args.courtesy, &args.gpu);
        Self::new(&Typed { network, courtesy, state: args.state.as_ref(), cache: None, gpu }, &mut file)
    }
}

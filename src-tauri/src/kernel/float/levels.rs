//! Compiles one body for every instruction level and calls the widest one that the machine has.

/// `name(args)`: `wide`, `middle` or `narrow`, each a function of a level's value and `args`.
macro_rules! on_the_widest_level {
    ($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*), $wide:expr, $middle:expr, $narrow:expr) => {
        $(#[$doc])*
        pub fn $name($($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            {
                use $crate::kernel::cpu::sixteen::{Avx2, Avx512};
                #[target_feature(enable = "avx512f")]
                fn wide(level: Avx512, $($arg: $ty),*) {
                    $wide(level, $($arg),*);
                }
                #[target_feature(enable = "avx2,f16c")]
                fn middle(level: Avx2, $($arg: $ty),*) {
                    $middle(level, $($arg),*);
                }
                if let Some(level) = Avx512::detect() {
                    #[expect(unsafe_code, reason = "calls code compiled for a detected instruction level")]
                    // SAFETY: the level's value proves that AVX-512F is there.
                    return unsafe { wide(level, $($arg),*) };
                }
                if let Some(level) = Avx2::detect() {
                    #[expect(unsafe_code, reason = "calls code compiled for a detected instruction level")]
                    // SAFETY: the level's value proves that AVX2 and F16C are there.
                    return unsafe { middle(level, $($arg),*) };
                }
            }
            $narrow($crate::kernel::cpu::sixteen::Plain, $($arg),*);
        }
    };
}

pub(super) use on_the_widest_level;

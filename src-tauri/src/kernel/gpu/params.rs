//! The parameter blocks of the kernels, byte for byte as the shaders read them.

use bytemuck::{Pod, Zeroable};

/// `Shape` of `shaders/common.exact.wgsl`; lengths and places are in the units named there.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
pub struct ExactShape {
    /// Super-blocks of a hidden state.
    pub outer_blocks: u32,
    /// Super-blocks of an inner row.
    pub inner_blocks: u32,
    /// Intermediate size.
    pub inner_rows: u32,
    /// Hidden size.
    pub outer_rows: u32,
    /// Start of up, in vec4.
    pub up_at: u32,
    /// Start of down.
    pub down_at: u32,
    /// Start of gate's row exponents.
    pub gate_exponents_at: u32,
    /// Start of up's.
    pub up_exponents_at: u32,
    /// Start of down's.
    pub down_exponents_at: u32,
    /// First status word behind the sums, in words.
    pub status_at: u32,
    /// Zero.
    pub pad_a: u32,
    /// Zero.
    pub pad_b: u32,
}

/// `Shape` of `shaders/common.float.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
pub struct FloatShape {
    /// vec4 of a row of gate and up.
    pub outer_vec4s: u32,
    /// vec4 of a row of down.
    pub inner_vec4s: u32,
    /// f32 vec4 of a hidden state.
    pub hidden_vec4s: u32,
    /// f32 vec4 of an inner row.
    pub inner_row_vec4s: u32,
    /// Intermediate size.
    pub inner_rows: u32,
    /// Hidden size.
    pub outer_rows: u32,
    /// Start of up, in vec4.
    pub up_at: u32,
    /// Start of down.
    pub down_at: u32,
}

// A weighted output on its row's grid.

struct Output {
    value: i32,
    in_range: bool,
}

const OUTPUT_MAX: i32 = 134217728;

// `rsh(dot · mantissa, shift)`, evaluated in two halves of 32 bits.
fn output(dot: i32, mantissa: i32, shift: i32) -> Output {
    if (dot == 0) {
        return Output(0, true);
    }
    if (shift < 1) {
        return Output(0, false);
    }
    if (shift > 47) {
        return Output(0, true);
    }
    let high = (dot >> 16u) * mantissa;
    let low = u32(dot & 0xffff) * u32(mantissa);
    let total = high + i32(low >> 16u);
    if (shift >= 17) {
        let k = u32(shift - 16);
        let value = (total >> k) + ((total >> (k - 1u)) & 1);
        return Output(value, abs(value) < OUTPUT_MAX);
    }
    let r = u32(shift);
    let limit = 1i << (11u + r);
    if (total >= limit || total < -limit) {
        return Output(0, false);
    }
    let rest = low & 0xffffu;
    let value = (total << (16u - r)) + i32(rest >> r) + i32((rest >> (r - 1u)) & 1u);
    return Output(value, abs(value) < OUTPUT_MAX);
}

// SwiGLU in integers: `silu(g) · u` of two scaled integers, as f32 bits that nobody computes with.

// v · 2^e with v rounded to 16 bits, the highest of them set.
struct Normal {
    m: u32,
    e: i32,
}

fn normal(v: u32, e: i32) -> Normal {
    let zeros = countLeadingZeros(v);
    let n = v << zeros;
    return Normal(min((n >> 16u) + ((n >> 15u) & 1u), 65535u), e + 16 - i32(zeros));
}

const ONE_Q30: u32 = 1073741824u;

// The sigmoid of |g| = m · 2^e in Q30, from a table in steps of 1/32 with linear interpolation; 1 from 16 on.
fn sigmoid(g: Normal) -> u32 {
    let p = g.e + 13;
    if (p >= 2) {
        return ONE_Q30;
    }
    var x = 0u;
    if (p == 1) {
        x = g.m << 1u;
    } else if (p == 0) {
        x = g.m;
    } else if (p >= -17) {
        let shift = u32(-p);
        x = (g.m + (1u << (shift - 1u))) >> shift;
    }
    let i = x >> 8u;
    let low = sigmoid_q30[i];
    return low + (((sigmoid_q30[i + 1u] - low) * (x & 255u) + 128u) >> 8u);
}

fn swiglu(gate: i32, gate_exponent: i32, up: i32, up_exponent: i32) -> u32 {
    if (gate == 0 || up == 0) {
        return 0u;
    }
    let g = normal(u32(select(gate, -gate, gate < 0)), gate_exponent);
    let u = normal(u32(select(up, -up, up < 0)), up_exponent);
    let positive = sigmoid(g);
    let s = select(positive, ONE_Q30 - positive, gate < 0);
    if (s == 0u) {
        return 0u;
    }
    let scaled = normal(s, -30);
    let silu = normal(g.m * scaled.m, g.e + scaled.e);
    let product = silu.m * u.m;
    let zeros = countLeadingZeros(product);
    let n = product << zeros;
    let significand = (n >> 8u) + ((n >> 7u) & 1u);
    let field = 31 + silu.e + u.e - i32(zeros) + 127;
    let sign = bitcast<u32>(gate ^ up) & 0x80000000u;
    if (field < 1) {
        return 0u;
    }
    if (field > 253) {
        // Beyond what a row can hold: the quantiser reports it as poison.
        return sign | 0x7f000000u;
    }
    return sign | ((u32(field) << 23u) + (significand - 0x800000u));
}

#!/usr/bin/env python3
"""quantised_blocks.safetensors: rows of f32 `x` [n, 256] and, for each type T that experts can be quantised to, the
blocks `T.blocks` [n, bytes of 256 weights] that ggml's reference quantisers make of them (`quantize_row_*_ref`,
as shipped with llama-cpp-python 0.3.36, built without FMA); `T.sha256`: of the blocks of STREAM_ROWS further rows that `stream` computes.

Usage: quantised_blocks.py libggml-base.so OUT
"""
import ctypes, hashlib, sys
import numpy as np
from safetensors.numpy import save_file

TYPES = {"Q4_0": 8 * 18, "Q8_0": 8 * 34, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210}
STREAM_ROWS = 1024


def bf16(x):
    u = x.astype(np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def rows():
    rng = np.random.RandomState(7)
    out = [bf16(rng.normal(0, 0.02, 256)) for _ in range(4)]                    # as a checkpoint has them
    out += [rng.normal(0, 0.02, 256).astype(np.float16) for _ in range(2)]
    out += [bf16(0.02 * rng.standard_t(3, 256)) for _ in range(3)]              # heavy tails
    outlier = rng.normal(0, 0.02, 256); outlier[77] = 20.0
    sparse = np.zeros(256); sparse[[0, 40, 255]] = [0.5, -0.25, 1e-3]
    halves = rng.normal(0, 0.02, 256); halves[::64] = 0; halves[64:160] = 0
    steps = rng.normal(0, 1, 256) * np.repeat(10.0 ** -np.arange(8), 32)
    out += [outlier, sparse, halves, steps, np.zeros(256), np.full(256, 0.125), np.full(256, -0.125)]
    out += [rng.uniform(0.1, 0.2, 256), -rng.uniform(0.1, 0.2, 256), np.linspace(-1, 1, 256)]
    out += [rng.normal(0, s, 256) for s in (1e-7, 1e-14, 1e-16, 1e-20, 1e-30)]  # at and below what f16 scales hold
    out += [np.clip(rng.normal(0, 3e4, 256), -65504, 65504), np.tile([0.5, -0.5, 0.25, -0.25], 64)]
    return np.stack([np.asarray(x, dtype=np.float32) for x in out])


def stream():
    state, out = 1, []
    for _ in range(STREAM_ROWS * 256):
        total = 0
        for _ in range(4):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            total += (state >> 33) - 2**30
        out.append(total)
    return (np.array(out, dtype=np.float64) * 2.0**-36).astype(np.float32)


if __name__ == "__main__":
    ggml = ctypes.CDLL(sys.argv[1])

    def quantise(name, x, size):
        x, y = np.ascontiguousarray(x, dtype=np.float32), np.zeros(size, dtype=np.uint8)
        f = getattr(ggml, f"quantize_row_{name[0].lower() + name[1:]}_ref")
        f(x.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(x.size))
        return y

    x, long, out = rows(), stream(), {}
    out["x"] = x
    for name, size in TYPES.items():
        out[f"{name}.blocks"] = np.stack([quantise(name, row, size) for row in x])
        digest = hashlib.sha256(quantise(name, long, size * STREAM_ROWS).tobytes()).digest()
        out[f"{name}.sha256"] = np.frombuffer(digest, dtype=np.uint8)
    save_file(out, sys.argv[2])
